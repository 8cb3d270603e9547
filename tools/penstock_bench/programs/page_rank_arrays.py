# SPDX-License-Identifier: Apache-2.0
"""PageRank with sense: the ranks are one array that the driver sends, the links stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock_bench.programs.page_rank import LINKS_OF_A_PAGE, ROUNDS, write
from penstock_bench.programs.program import Program

SHARES = "page long, share double"


def shares(ranks: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that gives each linked page its share of the linking page's rank."""

    def given(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pages = batch.column("page").to_numpy()
            yield pa.record_batch([batch.column("target"), ranks[pages]], names=["page", "share"])

    return given


def ranked(sums: pa.Table, pages: int) -> Any:
    """The ranks after a round."""
    ranks = np.full(pages, 0.15)
    ranks[sums["page"].to_numpy()] += 0.85 * sums["share"].to_numpy() / LINKS_OF_A_PAGE
    return ranks


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    links = spark.read.parquet(folder).cache()
    ranks = np.ones(links.selectExpr("1 + max(greatest(page, target))").first()[0])
    for _ in range(ROUNDS):
        given = links.mapInArrow(shares(ranks), SHARES)
        sums = given.groupBy("page").agg({"share": "sum"}).withColumnRenamed("sum(share)", "share").toArrow()
        ranks = ranked(sums, len(ranks))
    return pa.table({"rank": ranks})


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    links = penstock.readParquet(spark, folder)
    ranks = np.ones(links.select("greatest(page, target) AS page").toOne().agg({"page": "max"}).collect()[0][0] + 1)
    for _ in range(ROUNDS):
        given = links.mapInArrow(shares(ranks), SHARES)
        sums = given.groupBy("page").agg(share=("share", "sum")).toArrow()
        ranks = ranked(sums, len(ranks))
    return pa.table({"rank": ranks})


PROGRAM = Program(
    "PageRank by arrays",
    "the same ranks; a Python function looks up each link's rank in an array, the sums come back to the driver",
    8_000_000,
    write,
    (in_pyspark,),
    (in_penstock,),
)
