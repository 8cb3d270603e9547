# SPDX-License-Identifier: Apache-2.0
"""Orders, scored in Python, joined with their customers, of whom a few order most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import Columns, named, piece_number, skewed, write_tables

ORDERS_OF_A_CUSTOMER = 10
SCORED = "customer long, score double"


def write(folder: Path, rows: int) -> None:
    """Orders, and a tenth as many customers."""
    people = max(1, rows // ORDERS_OF_A_CUSTOMER)

    def orders(random: np.random.Generator, count: int) -> Columns:
        return {
            "customer": skewed(random, count, people),
            "price": random.random(count) * 100,
            "pieces": random.integers(1, 20, count),
        }

    def customers(random: np.random.Generator, count: int) -> Columns:
        number = piece_number(random)
        ids = np.arange(number * -(-people // 4), number * -(-people // 4) + count)
        return {
            "customer": ids,
            "country": named("country-", ids % 60),
            "street": named("street ", random.integers(0, 100_000, count)),
        }

    write_tables(folder / "orders", rows, orders)
    write_tables(folder / "customers", people, customers)


def scored(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A score of each order."""
    for batch in batches:
        score = pc.multiply(pc.sqrt(batch.column("price")), pc.ln(pc.add(batch.column("pieces"), 1)))
        yield pa.record_batch([batch.column("customer"), score], names=["customer", "score"])


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    orders = spark.read.parquet(f"{folder}/orders").mapInArrow(scored, SCORED)
    customers = spark.read.parquet(f"{folder}/customers")
    return orders.join(customers, "customer").groupBy("country").agg({"score": "sum", "street": "count"})


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    orders = penstock.readParquet(spark, f"{folder}/orders").mapInArrow(scored, SCORED).keyBy("customer")
    customers = penstock.readParquet(spark, f"{folder}/customers").keyBy("customer")
    return orders.join(customers).groupBy("country").agg({"score": "sum", "street": "count"})


PROGRAM = Program(
    "join with skew",
    "orders scored in Python, joined with customers",
    3_000_000,
    write,
    (in_pyspark,),
    (in_penstock,),
)
