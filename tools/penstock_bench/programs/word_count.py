# SPDX-License-Identifier: Apache-2.0
"""Counts of each word in texts; Python cuts the lines into words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import skewed, write_lines

WORDS, IN_A_LINE = 20_000, 10


def write(folder: Path, rows: int) -> None:
    """Lines of ten words, of which a few come often."""
    names = np.char.add("Word", np.arange(WORDS).astype(str))

    def lines(random: np.random.Generator, count: int) -> list[str]:
        chosen = names[skewed(random, count * IN_A_LINE, WORDS)].reshape(count, IN_A_LINE)
        return [", ".join(line) for line in chosen]

    write_lines(folder, rows, lines)


def words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row per word, in small letters."""
    for batch in batches:
        found = pc.list_flatten(pc.split_pattern_regex(pc.utf8_lower(batch.column("value")), r"[^a-z0-9]+"))
        yield pa.record_batch([found.filter(pc.not_equal(found, ""))], names=["word"])


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    lines = spark.read.text(folder)
    return lines.mapInArrow(words, "word string").groupBy("word").count()


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    lines = penstock.readText(spark, folder)
    return lines.mapInArrow(words, "word string").groupBy("word").count()


PROGRAM = Program(
    "word count", "words of text lines, cut in Python, counted", 1_000_000, write, (in_pyspark,), (in_penstock,)
)
