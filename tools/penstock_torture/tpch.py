# SPDX-License-Identifier: Apache-2.0
"""The TPC-H example with one kill in each run: the answer is DuckDB's, or there is a clear refusal.

Run n of seed s is the same query over the same kind of exchange with the same victim, struck at the same share of the
time that the query takes without harm, as far as that is known: each query runs once without harm before its first
kill, and a run that ends before its kill tells too. DuckDB answers each query once.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import PenstockError
from penstock_torture.harm import Harm

SCALE = 0.05
RIGHT, REFUSED, WRONG, UNCLEAR, ENDLESS = "right", "refused", "WRONG ROWS", "UNCLEAR ERROR", "NO END"
WELL = (RIGHT, REFUSED)
_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tpch"
_MODE = "spark.penstock.shuffle.mode"
_MODES = ("pipelined", "blocking", "hybrid", "hybrid_selective")
_RUN_SECONDS = 120.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TpchRun:
    """One run: which query, over which exchanges, who is killed, and after which share of its usual time."""

    name: str
    query: int
    mode: str
    victim: str
    share: float
    pick: float


def random_run(seed: int, number: int, queries: tuple[int, ...]) -> TpchRun:
    """Run `number` of a seed."""
    chance = random.Random(f"{seed}/tpch/{number}")  # noqa: S311 - chance, not a secret
    query, mode = chance.choice(queries), chance.choice(_MODES)
    victim = chance.choice(("worker", "worker", "environment"))
    return TpchRun(f"tpch {seed}/{number}", query, mode, victim, chance.random(), chance.random())


def torture_tpch(spark: Any, seed: int, runs: int, say: Say) -> Counter[str]:
    """Run them all and print a line for each; how many ended in which way. Raises ValueError without the example."""
    outcomes: Counter[str] = Counter()
    with _example() as example, tempfile.TemporaryDirectory(prefix="pt-tpch-") as folder:
        example.generate(folder, SCALE)
        queries = _Queries(spark, example, folder)
        for number in range(runs):
            run = random_run(seed, number, tuple(sorted(example.QUERIES)))
            began = time.monotonic()
            kind, text = queries.run(run)
            outcomes[kind] += 1
            sign = "ok  " if kind in WELL else "FAIL"
            say(
                f"{sign} {run.name} {time.monotonic() - began:5.2f} s  query {run.query} {run.mode},"
                f" {run.victim} killed at {run.share:.0%}: {kind}{text} ({number + 1} of {runs})"
            )
    return outcomes


class _Queries:
    """The queries with their right answers and usual times."""

    def __init__(self, spark: Any, example: ModuleType, folder: str) -> None:
        self._spark = spark
        self._example = example
        self._reference = sys.modules["reference"]
        self._folder = folder
        self._answers: dict[int, list[tuple[Any, ...]]] = {}
        self._seconds: dict[tuple[int, str], float] = {}

    def run(self, run: TpchRun) -> tuple[str, str]:
        """The end of the run, and the words about it. A run that does not end is left behind."""
        outcome: list[tuple[str, str]] = []
        worker = threading.Thread(target=lambda: outcome.append(self._outcome(run)), daemon=True)
        worker.start()
        worker.join(_RUN_SECONDS)
        return outcome[0] if outcome else (ENDLESS, f" within {_RUN_SECONDS:.0f} s")

    def _outcome(self, run: TpchRun) -> tuple[str, str]:
        self._spark.conf.set(_MODE, run.mode)
        try:
            self._know(run)
            return self._harmed(run)
        except Exception as error:  # noqa: BLE001 - this is without harm: any error is a failure
            return UNCLEAR, f" without harm: {_line(error)}"
        finally:
            self._spark.conf.unset(_MODE)

    def _know(self, run: TpchRun) -> None:
        if run.query not in self._answers:
            sql = self._example.QUERIES[run.query].SQL
            self._answers[run.query] = self._reference.duckdb_answer(self._folder, sql)
        if (run.query, run.mode) not in self._seconds:
            began = time.monotonic()
            difference = self._difference(run)
            self._seconds[run.query, run.mode] = time.monotonic() - began
            if difference:
                raise AssertionError(difference)

    def _harmed(self, run: TpchRun) -> tuple[str, str]:
        after = run.share * self._seconds[run.query, run.mode]
        harm = Harm(self._spark, run.victim, after, run.pick)
        began = time.monotonic()
        try:
            with harm:
                difference = self._difference(run)
        except Exception as error:  # noqa: BLE001 - which errors are right is what is being asked
            return (REFUSED if harm.struck and _is_clear(error) else UNCLEAR), f": {_line(error)}"
        if not harm.struck:
            self._seconds[run.query, run.mode] = time.monotonic() - began  # the first run starts workers and more
        return (WRONG, f": {difference}") if difference else (RIGHT, "" if harm.struck else ", ended before the kill")

    def _difference(self, run: TpchRun) -> str | None:
        stream = self._example.QUERIES[run.query].pipeline(self._spark, self._folder)
        found: str | None = self._reference.difference(
            self._reference.penstock_answer(stream), self._answers[run.query]
        )
        return found


def _is_clear(error: Exception) -> bool:
    is_ours = isinstance(error, PenstockError) or type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
    return is_ours and bool(str(error).strip())


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    telling = [line for line in lines if "Error: " in line and not line.startswith("pyspark.")] or lines
    return f"{type(error).__name__}: {telling[-1]}"[:300]


@contextlib.contextmanager
def _example() -> Iterator[ModuleType]:
    """The example's script as a module; the names it imports are gone afterwards."""
    if not (_EXAMPLE / "run.py").exists():
        raise ValueError(f"there is no TPC-H example in {_EXAMPLE}: this needs a checkout of the sources")
    sys.path.insert(0, str(_EXAMPLE))
    try:
        yield importlib.import_module("run")
    finally:
        sys.path.remove(str(_EXAMPLE))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(_EXAMPLE)):
                del sys.modules[name]
