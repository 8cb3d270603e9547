# SPDX-License-Identifier: Apache-2.0
"""Outcomes as tables: for a terminal and for the README, between its two marks. Nothing in them is a date."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.bench.measure import COUNT, MEGABYTES, SECONDS, Outcome
from penstock.shuffle.errors import SettingError

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
_HOW = (
    "Medians of whole actions in a warm session, both sides in turns. Spark has the settings that suit it best here,",
    "and of 2, 4 and 8 shuffle partitions the number with which it was fastest (in brackets).",
)
_HEADINGS = ("what", "rows", "data", "Penstock", "Spark", "times")


def print_table(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> None:
    """Write a table to standard output."""
    table = Table(box=None, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for outcome in outcomes:
        table.add_row(*_cells(outcome))
    console = Console(highlight=False)
    console.print(table)
    console.print(machine_line(machine), soft_wrap=True)


def markdown(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> str:
    """Two tables and what they were measured on."""
    compared = [outcome for outcome in outcomes if outcome.spark]
    own = [outcome for outcome in outcomes if not outcome.spark]
    text = [*_HOW, ""]
    text += _rows(_HEADINGS, [_cells(outcome) for outcome in compared])
    if own:
        text += ["", *_rows(_HEADINGS[:4], [_cells(outcome)[:4] for outcome in own])]
    return "\n".join([*text, "", machine_line(machine)])


def check_readme(path: Path) -> str:
    """The file's text; raises SettingError where its marks are missing."""
    text = path.read_text() if path.is_file() else ""
    if START not in text or END not in text:
        raise SettingError(f"{path}: there are no lines {START} and {END} to write between")
    return text


def write_readme(path: Path, text: str) -> None:
    """Replace what is between the marks; raises SettingError where they are missing."""
    old = check_readme(path)
    before, _, rest = old.partition(START)
    path.write_text(f"{before}{START}\n{text}\n{END}{rest.partition(END)[2]}")


def machine_line(machine: dict[str, Any]) -> str:
    """What the figures depend on, in a line."""
    return (
        f"Measured on {machine['cores']} cores of one host with Python {machine['python']}, "
        f"PySpark {machine['pyspark']}, PyArrow {machine['pyarrow']}."
    )


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(headings) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _cells(outcome: Outcome) -> list[str]:
    spark = outcome.spark_median
    partitions = f" ({outcome.spark_partitions})" if outcome.spark_partitions else ""
    return [
        outcome.name,
        f"{outcome.rows:,}" if outcome.rows else "",
        _size(outcome.bytes),
        _figure(outcome.penstock_median, outcome.unit),
        f"{_figure(spark, outcome.unit)}{partitions}" if spark is not None else "",
        f"{outcome.ratio:.1f}" if outcome.ratio is not None else "",
    ]


def _figure(value: float, unit: str) -> str:
    if unit == SECONDS and value < 1:
        return f"{value * 1000:.0f} ms"
    if unit == COUNT:
        return f"{value:,.0f}"
    return f"{value:.0f} {unit}" if unit == MEGABYTES else f"{value:.2f} {unit}"


def _size(size: int) -> str:
    if size >= 10**9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:,.0f} MB" if size >= 10**6 else f"{size / 1e3:,.0f} kB"
