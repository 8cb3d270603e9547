# SPDX-License-Identifier: Apache-2.0
"""Runs two ways to one answer in turns, checks every answer, and keeps the times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock_bench.page_rows import Row

Say = Callable[[str], None]
PARTITION_CHOICES = (2, 4, 8)
SECONDS, MILLISECONDS, RATE, MEGABYTES, COUNT, RATIO = "s", "ms", "GB/s", "MB", "", "x"
ROWS_RATE = "M rows/s"
SHARE = "%"


class WrongAnswerError(PenstockError):
    """A measured run gave other rows than it must."""


@dataclass(frozen=True, slots=True)
class Case:
    """The two sides that are compared.

    `spark` takes a number of shuffle partitions; `check(answer, small)` raises.
    """

    row: Row
    penstock: Callable[[bool], Any]
    spark: Callable[[bool, int], Any]
    check: Callable[[Any, bool], None]
    rows: int
    bytes: int
    choices: tuple[int, ...] = PARTITION_CHOICES


@dataclass(frozen=True, slots=True)
class Outcome:
    """The seconds of each run, or another figure."""

    row: Row
    rows: int = 0
    bytes: int = 0
    penstock: tuple[float, ...] = ()
    spark: tuple[float, ...] = ()
    spark_partitions: int = 0
    unit: str = SECONDS

    @property
    def penstock_median(self) -> float:
        """The middle one of Penstock's runs."""
        return statistics.median(self.penstock)

    @property
    def spark_median(self) -> float | None:
        """The middle one of Spark's runs, or None where Spark was not run."""
        return statistics.median(self.spark) if self.spark else None

    @property
    def ratio(self) -> float | None:
        """The number of times that Penstock is faster."""
        if self.spark_median is None:
            return None
        quotient = self.spark_median / self.penstock_median
        return 1 / quotient if self.unit in (RATE, ROWS_RATE) else quotient

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.row.label,
            "rows": self.rows,
            "bytes": self.bytes,
            "unit": self.unit,
            "penstock": [round(value, 4) for value in self.penstock],
            "penstock_median": round(self.penstock_median, 4),
            "spark": [round(value, 4) for value in self.spark],
            "spark_median": None if self.spark_median is None else round(self.spark_median, 4),
            "spark_partitions": self.spark_partitions,
            "ratio": None if self.ratio is None else round(self.ratio, 2),
        }


def compare(case: Case, repeat: int, say: Say, settle: Callable[[], None]) -> Outcome:
    """Warm both sides on few rows, choose Spark's number of partitions there, then run in turns.

    The first turn of each side is not counted: with it the processes and the machine take the memory that the case
    needs. `settle` is called before each turn, so that neither side runs beside what the other left behind.
    """
    say(f"{case.row.label}: {case.rows:,} rows, {case.bytes / 1e6:,.0f} MB")
    timed(lambda: case.penstock(True), lambda answer: case.check(answer, True))
    partitions = _best_partitions(case, say)
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(repeat + 1):
        settle()
        ours.append(timed(lambda: case.penstock(False), lambda answer: case.check(answer, False)))
        settle()
        theirs.append(timed(lambda: case.spark(False, partitions), lambda answer: case.check(answer, False)))
        say(f"  Penstock {ours[-1]:.2f} s, Spark {theirs[-1]:.2f} s" + ("" if turn else " (not counted)"))
    return Outcome(case.row, case.rows, case.bytes, tuple(ours[1:]), tuple(theirs[1:]), partitions)


def timed(run: Callable[[], Any], check: Callable[[Any], None]) -> float:
    """The seconds of one run, whose answer is then checked."""
    began = time.perf_counter()
    answer = run()
    seconds = time.perf_counter() - began
    check(answer)
    return seconds


def _best_partitions(case: Case, say: Say) -> int:
    if len(case.choices) == 1:
        timed(lambda: case.spark(True, case.choices[0]), lambda answer: case.check(answer, True))
        return case.choices[0]
    timed(lambda: case.spark(True, case.choices[0]), lambda answer: case.check(answer, True))
    seconds = {
        choice: timed(lambda choice=choice: case.spark(True, choice), lambda answer: case.check(answer, True))  # type: ignore[misc]
        for choice in case.choices
    }
    best = min(seconds, key=lambda choice: seconds[choice])
    say("  Spark on few rows, by partitions: " + ", ".join(f"{n}: {s:.2f} s" for n, s in seconds.items()))
    return best
