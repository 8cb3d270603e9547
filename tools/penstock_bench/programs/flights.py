# SPDX-License-Identifier: Apache-2.0
"""Delays by carrier and distance, out of CSV files of flights; Python computes great circles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import write_lines

AIRPORTS = 300
FLIGHT = "carrier string, start int, goal int, month int, delay double"
PLACED = "carrier string, month int, reach int, delay double"


def write(folder: Path, rows: int) -> None:
    """Flights of twenty carriers."""

    def lines(random: np.random.Generator, count: int) -> list[str]:
        starts, goals = random.integers(0, AIRPORTS, count), random.integers(0, AIRPORTS, count)
        carriers, months = random.integers(0, 20, count), random.integers(1, 13, count)
        delays = random.integers(-200, 2_000, count) / 10
        parts = zip(carriers.tolist(), starts.tolist(), goals.tolist(), months.tolist(), delays.tolist(), strict=True)
        return [f"carrier-{carrier},{start},{goal},{month},{delay}" for carrier, start, goal, month, delay in parts]

    write_lines(folder, rows, lines)


def placed(airports: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that gives flights how far they reach, in thousands of kilometres; the airports are in radians."""

    def given(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            north, east = airports[batch["start"].to_numpy()].T
            other_north, other_east = airports[batch["goal"].to_numpy()].T
            straight = np.sin(north) * np.sin(other_north)
            around = np.cos(north) * np.cos(other_north) * np.cos(east - other_east)
            reach = (6.371 * np.arccos(np.clip(straight + around, -1, 1))).astype(np.int32)
            columns = [batch["carrier"], batch["month"], reach, batch["delay"]]
            yield pa.record_batch(columns, names=["carrier", "month", "reach", "delay"])

    return given


def airports() -> Any:
    """The places of the airports."""
    return (np.random.default_rng(3).random((AIRPORTS, 2)) - 0.5) * [np.pi, 2 * np.pi]


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    flights = spark.read.schema(FLIGHT).csv(folder).mapInArrow(placed(airports()), PLACED)
    late = flights.filter("delay > 15").groupBy("carrier", "month", "reach")
    return late.agg({"delay": "avg", "*": "count"})


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    flights = penstock.readCsv(spark, folder, FLIGHT).mapInArrow(placed(airports()), PLACED)
    late = flights.filter("delay > 15").groupBy("carrier", "month", "reach")
    return late.agg({"delay": "avg", "*": "count"})


PROGRAM = Program(
    "flights",
    "CSV files; Python computes distances; means of delays",
    2_000_000,
    write,
    (in_pyspark,),
    (in_penstock,),
)
