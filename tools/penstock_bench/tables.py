# SPDX-License-Identifier: Apache-2.0
"""Outcomes as cells of a table, and as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock_bench.measure import COUNT, MEGABYTES, ROWS_RATE, SECONDS, Outcome

HEADINGS = ("row", "rows", "data", "Penstock", "Spark", "times")


def print_table(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> None:
    """Write a table to standard output."""
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "row" else "right")
    for outcome in outcomes:
        table.add_row(*cells(outcome))
    console = Console(highlight=False)
    console.print(table)
    console.print(machine_line(machine), soft_wrap=True)


def machine_line(machine: dict[str, Any]) -> str:
    """The facts that the figures depend on, in a line."""
    return (
        f"Measured on {machine['cores']} cores of one host with Python {machine['python']}, "
        f"PySpark {machine['pyspark']}, PyArrow {machine['pyarrow']}."
    )


def cells(outcome: Outcome) -> list[str]:
    """One outcome under `HEADINGS`; empty where it has nothing to say."""
    spark = outcome.spark_median
    partitions = f" ({outcome.spark_partitions})" if outcome.spark_partitions else ""
    return [
        outcome.row.label,
        f"{outcome.rows:,}" if outcome.rows else "",
        _size(outcome.bytes),
        _figure(outcome.penstock_median, outcome.unit),
        f"{_figure(spark, outcome.unit)}{partitions}" if spark is not None else "",
        f"{outcome.ratio:.1f}" if outcome.ratio is not None else "",
    ]


def _figure(value: float, unit: str) -> str:
    if unit == SECONDS and value < 1:
        return f"{value * 1000:.0f} ms"
    if unit == ROWS_RATE and value < 1:
        return f"{value * 1000:.0f} k rows/s"
    if unit == COUNT:
        return f"{value:,.0f}"
    return f"{value:.0f} {unit}" if unit == MEGABYTES else f"{value:.2f} {unit}"


def _size(size: int) -> str:
    if not size:
        return ""
    if size >= 10**9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:,.0f} MB" if size >= 10**6 else f"{size / 1e3:,.0f} kB"
