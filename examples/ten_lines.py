# SPDX-License-Identifier: Apache-2.0
"""Counts the words of a folder of text files: `python examples/ten_lines.py <folder>`."""

import sys

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import penstock


def words(batches):
    """One row per word."""
    for batch in batches:
        column = pc.list_flatten(pc.utf8_split_whitespace(batch["value"]))
        yield pa.record_batch([column], names=["word"])


spark = SparkSession.builder.master("local[4]").getOrCreate()
lines = penstock.readText(spark, sys.argv[1])
found = lines.mapInArrow(words, "word string").filter("word <> ''")
counts = found.groupBy("word").count()
counts.sortBy("count", ascending=False).show(10)
