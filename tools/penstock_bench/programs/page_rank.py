# SPDX-License-Identifier: Apache-2.0
"""PageRank as a chain of joins and sums, as a first draft has it: no Python function at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import Columns, skewed, write_tables

ROUNDS = 3
LINKS_OF_A_PAGE = 10


def write(folder: Path, rows: int) -> None:
    """Links between pages; a few pages are linked to often. Every page has the same number of links."""

    def links(random: np.random.Generator, count: int) -> Columns:
        pages = max(2, rows // LINKS_OF_A_PAGE)
        return {"page": random.integers(0, pages, count), "target": skewed(random, count, pages)}

    write_tables(folder, rows, links)


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    links = spark.read.parquet(folder)
    links = links.join(links.groupBy("page").count(), "page").cache()
    ranks = links.select("page").distinct().selectExpr("page", "1.0D AS rank")
    for _ in range(ROUNDS):
        given = links.join(ranks, "page").selectExpr("target AS page", "rank / count AS share")
        ranks = given.groupBy("page").sum("share").selectExpr("page", "0.15D + 0.85D * `sum(share)` AS rank")
    return ranks


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    links = penstock.readParquet(spark, folder)
    links = links.keyBy("page").join(links.groupBy("page").count().keyBy("page")).persist()
    ranks = links.select("page").distinct().selectExpr("page", "1.0D AS rank")
    for _ in range(ROUNDS):
        given = links.keyBy("page").join(ranks.keyBy("page")).selectExpr("target AS page", "rank / count AS share")
        ranks = given.groupBy("page").sum("share").selectExpr("page", "0.15D + 0.85D * `sum(share)` AS rank")
    return ranks


PROGRAM = Program(
    "PageRank by joins",
    "three rounds of join and sum over a table of links",
    400_000,
    write,
    (in_pyspark,),
    (in_penstock,),
    "it has no Python stage",
)
