# SPDX-License-Identifier: Apache-2.0
"""The ten songs of each country that were played most; Python cleans the titles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import Columns, named, skewed, write_tables

PLAY = "country string, song string"
SONGS = "country string, song string, count long"


def write(folder: Path, rows: int) -> None:
    """Plays in forty countries; some titles say that they are live."""

    def plays(random: np.random.Generator, count: int) -> Columns:
        songs = skewed(random, count, 20_000) * 2 + random.integers(0, 2, count)
        titles = np.char.add("Song No. ", (np.arange(40_000) // 2).astype(str))
        titles[1::2] = np.char.add(titles[1::2], " (Live)")
        chosen = pa.DictionaryArray.from_arrays(pa.array(songs.astype(np.int32)), pa.array(titles))
        return {"country": named("country-", random.integers(0, 40, count)), "title": chosen.cast(pa.string())}

    write_tables(folder, rows, plays)


def cleaned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Titles in small letters, without what is in brackets."""
    for batch in batches:
        titles = pc.utf8_lower(pc.utf8_trim_whitespace(pc.replace_substring_regex(batch["title"], r"\(.*\)", "")))
        yield pa.record_batch([batch["country"], titles], names=["country", "song"])


def best(songs: pa.Table) -> pa.Table:
    """The first ten of one country."""
    return songs.sort_by([("count", "descending"), ("song", "ascending")]).slice(0, 10)


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    plays = spark.read.parquet(folder).mapInArrow(cleaned, PLAY)
    counts = plays.groupBy("country", "song").count()
    most_first = Window.partitionBy("country").orderBy(F.desc("count"), "song")
    places = counts.withColumn("place", F.row_number().over(most_first))
    return places.filter("place <= 10").drop("place")


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    plays = penstock.readParquet(spark, folder).mapInArrow(cleaned, PLAY)
    counts = plays.groupBy("country", "song").count()
    return counts.groupBy("country").applyInArrow(best, SONGS)


PROGRAM = Program(
    "top ten",
    "titles cleaned in Python, the ten of each country",
    2_000_000,
    write,
    (in_pyspark,),
    (in_penstock, best),
)
