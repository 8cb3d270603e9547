# SPDX-License-Identifier: Apache-2.0
"""Texts that differ only in case and spaces, found by a hash that Python makes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import Columns, named, write_tables

MARKED = "digest binary, text string, source string"


def write(folder: Path, rows: int) -> None:
    """Texts of 20 words, each about three times, with other spaces."""

    def texts(random: np.random.Generator, count: int) -> Columns:
        words = np.char.add("word", np.arange(1_000).astype(str))
        few = max(1, rows // 3)
        kinds = random.integers(0, few, count)
        spaces = np.array([" ", "  ", " \t"])[random.integers(0, 3, count)]
        chosen = words[(kinds[:, None] * np.arange(1, 21)) % 1_000]
        joined = [
            f"No. {kind}{space}" + space.join(line) for kind, space, line in zip(kinds, spaces, chosen, strict=True)
        ]
        return {"text": joined, "source": named("site-", kinds % 50)}

    write_tables(folder, rows, texts)


def marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each text with the hash of its plain form."""
    for batch in batches:
        plain = pc.replace_substring_regex(pc.utf8_lower(batch["text"]), r"\s+", " ")
        digests = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in plain.to_pylist()]
        yield pa.record_batch([pa.array(digests), plain, batch["source"]], names=["digest", "text", "source"])


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    texts = spark.read.parquet(folder).mapInArrow(marked, MARKED)
    return texts.dropDuplicates(["digest"]).groupBy("source").agg({"digest": "count", "text": "max"})


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    texts = penstock.readParquet(spark, folder).mapInArrow(marked, MARKED)
    return texts.dropDuplicates(["digest"]).groupBy("source").agg({"digest": "count", "text": "max"})


PROGRAM = Program(
    "duplicates", "texts hashed in Python, each kept once, counted", 300_000, write, (in_pyspark,), (in_penstock,)
)
