# SPDX-License-Identifier: Apache-2.0
"""Counts the words of a folder of Parquet files with one text column: `python examples/ten_lines.py <folder>`."""

import sys

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import penstock


def split_words(batches):
    """One row per word."""
    for batch in batches:
        words = pc.list_flatten(pc.utf8_split_whitespace(batch.column("value")))
        yield pa.record_batch([words], names=["word"])


spark = SparkSession.builder.master("local[4]").getOrCreate()
lines = penstock.readParquet(spark, sys.argv[1], columns=["value"])
words = lines.mapInArrow(split_words, "word string")
counts = words.groupBy("word").agg(n=("word", "count")).toDF()
counts.orderBy("n", ascending=False).show(10)
