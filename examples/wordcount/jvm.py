# SPDX-License-Identifier: Apache-2.0
"""The same count by Spark's JVM alone, to compare with: split, explode, groupBy, count.

Spark leaves out files whose names begin with `_` or `.` and takes long over thousands of small files, so it gets the
same text joined into a few files, which are written before its time begins.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from wordcount.files import TextFile

_NO_WORD = r"[^a-z0-9_\x{80}-\x{10ffff}]+"
_JOINED_BYTES = 8 << 20


def join_files(files: Sequence[TextFile], folder: Path) -> list[str]:
    """Copies of the files, joined by line ends to files of some megabytes."""
    paths: list[str] = []
    size = _JOINED_BYTES
    for file in files:
        if size >= _JOINED_BYTES:
            paths.append(str(folder / f"part-{len(paths):05}.txt"))
            size = 0
        with Path(paths[-1]).open("ab") as joined:
            size += joined.write(Path(file.path).read_bytes()) + joined.write(b"\n")
    return paths


def count_in_jvm(spark: Any, paths: list[str], partitions: int) -> pa.Table:
    """All words with their counts."""
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    lines = spark.read.text(paths)
    small = f.translate("value", string.ascii_uppercase, string.ascii_lowercase)
    words = lines.select(f.explode(f.split(small, _NO_WORD)).alias("word")).where("word != ''")
    return words.groupBy("word").agg(f.count("*").alias("n")).toArrow()
