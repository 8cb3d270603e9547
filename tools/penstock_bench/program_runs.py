# SPDX-License-Identifier: Apache-2.0
"""`penstock_bench programs`: small real programs in PySpark alone and with Penstock, in turns, with equal answers.

One warm session; each form runs once before it counts. Spark has as many shuffle partitions as there are slots, which
suits it better here than its 200. A figure is the median of whole programs, from the first line to the last row.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import SettingError
from penstock_bench.measure import Say, WrongAnswerError, timed
from penstock_bench.programs.answers import difference
from penstock_bench.programs.catalogue import PROGRAMS
from penstock_bench.programs.program import Program, form_lines
from penstock_bench.session import bench_session, collect_garbage, machine

SLOTS = 4
LEAST_ROWS = 400


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """The options of the command line of `bench programs`; `only` names programs, or parts of their names."""

    scale: float = 1.0
    repeat: int = 3
    only: tuple[str, ...] = ()
    json: bool = False


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """The seconds of each run of both forms of a program, which gave equal rows."""

    program: Program
    rows: int
    pyspark: tuple[float, ...]
    penstock: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The number of times that Penstock's form is faster."""
        return statistics.median(self.pyspark) / statistics.median(self.penstock)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.program.name,
            "rows": self.rows,
            "pyspark": [round(value, 4) for value in self.pyspark],
            "penstock": [round(value, 4) for value in self.penstock],
            "ratio": round(self.ratio, 2),
            "pyspark_lines": form_lines(self.program.pyspark),
            "penstock_lines": form_lines(self.program.penstock),
            "against": self.program.against,
        }


def bench_programs(options: ProgramOptions) -> int:
    """Run all programs and print a line for each, then the median."""
    if not options.scale > 0:
        raise SettingError(f"--scale must be above 0, not {options.scale}")
    programs = chosen(options.only)
    conf = {"spark.sql.shuffle.partitions": str(SLOTS)}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, bench_session(SLOTS, conf) as spark:
        outcomes = [run_program(spark, program, Path(folder), options, _say) for program in programs]
    if options.json:
        sys.stdout.write(json.dumps({"machine": machine(), "programs": [one.to_json() for one in outcomes]}) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in table_lines(outcomes))
    return 0


def chosen(only: Sequence[str]) -> tuple[Program, ...]:
    """The programs whose names contain one of these, or all; raises SettingError where none does."""
    found = tuple(program for program in PROGRAMS if not only or any(part in program.name for part in only))
    if not found:
        raise SettingError(
            f"no program is named {' or '.join(only)}: there are {', '.join(p.name for p in PROGRAMS)}"
        )
    return found


def run_program(spark: Any, program: Program, folder: Path, options: ProgramOptions, say: Say) -> ProgramOutcome:
    """Write its rows, run both forms in turns, compare every answer."""
    place = folder / program.name.replace(" ", "_")
    rows = max(LEAST_ROWS, int(program.rows * options.scale))
    program.write(place, rows)
    seconds: dict[str, list[float]] = {"penstock": [], "pyspark": []}
    answers: list[Any] = []
    for _ in range(options.repeat + 1):
        for form, functions in (("penstock", program.penstock), ("pyspark", program.pyspark)):
            collect_garbage(spark)
            seconds[form].append(timed(_whole(functions[0], spark, str(place)), answers.append))
            _check(program, form, answers)
    outcome = ProgramOutcome(program, rows, tuple(seconds["pyspark"][1:]), tuple(seconds["penstock"][1:]))
    say(f"{program.name}: {rows:,} rows, {outcome.ratio:.2f} times")
    return outcome


def _whole(form: Callable[..., Any], spark: Any, folder: str) -> Callable[[], Any]:
    def run() -> Any:
        given = form(spark, folder)
        return given.toArrow() if hasattr(given, "toArrow") else given

    return run


def _check(program: Program, form: str, answers: list[Any]) -> None:
    """Compare the last answer with the first one, which alone is kept."""
    wrong = difference(answers[0], answers[-1])
    if wrong is not None:
        raise WrongAnswerError(f"{program.name}: the {form} form gives another answer: {wrong}")
    del answers[1:]


def table_lines(outcomes: Sequence[ProgramOutcome]) -> list[str]:
    """A line for each program, and the median of those that the docs do not advise against."""
    lines = [f"{'program':<20}{'rows':>11}{'PySpark':>10}{'Penstock':>10}{'times':>7}{'lines':>10}"]
    for one in outcomes:
        took = f"{statistics.median(one.pyspark):>8.2f} s{statistics.median(one.penstock):>8.2f} s"
        counts = f"{form_lines(one.program.pyspark)} and {form_lines(one.program.penstock)}"
        note = f"  ({one.program.against})" if one.program.against else ""
        lines.append(f"{one.program.name:<20}{one.rows:>11,}{took}{one.ratio:>7.2f}{counts:>10}{note}")
    lines.append(f"median of all: {statistics.median(one.ratio for one in outcomes):.2f}")
    advised = [one.ratio for one in outcomes if not one.program.against]
    if advised and len(advised) < len(outcomes):
        lines.append(f"median of those with a Python stage: {statistics.median(advised):.2f}")
    return lines


def _say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
