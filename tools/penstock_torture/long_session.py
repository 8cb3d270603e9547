# SPDX-License-Identifier: Apache-2.0
"""A session that is held for long: random jobs one after the other and four at once, under kills and pauses.

Every 20 seconds a worker is killed, every five minutes the driver's process is stopped for as long as a long garbage
collection takes. The right rows must come out of every job; an error is right only where a worker was killed while
the job ran, and is counted. After each round what the session holds is looked at: memory, disk, open files, threads
and results must not grow.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock_torture.harm import kill_a_worker
from penstock_torture.recipe import Exchange, Recipe, in_order, random_recipe
from penstock_torture.session_figures import Figures, describe, give_back, growth, look

MASTER = "local[12,1000]"
"""Spark tries a task again whose worker was killed, as on a cluster."""
MODES = ("auto", "pipelined", "hybrid", "blocking")
ACTIONS = ("collected", "counted", "read twice", "persisted")
_ROUND = 20
_AT_ONCE = 4
_KILL_SECONDS = 20.0
_PAUSE_EVERY = 300.0
_PAUSE_SECONDS = 20.0
_JOB_SECONDS = 240.0
_PAUSER = """
import os, signal, sys, time
os.kill(int(sys.argv[1]), signal.SIGSTOP)
time.sleep(float(sys.argv[2]))
os.kill(int(sys.argv[1]), signal.SIGCONT)
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LongJob:
    """One job: its recipe, the mode of its exchanges, and what is done with its result."""

    number: int
    recipe: Recipe
    mode: str
    action: str

    @classmethod
    def random(cls, seed: int, number: int) -> LongJob:
        """Job `number` of a seed."""
        chance = random.Random(f"long {seed}/{number}")  # noqa: S311 - chance, not a secret
        recipe = replace(random_recipe(seed, number, spark=True), harm="", harm_after=0.0)
        # Harm needs an error, and time for each batch, which are thousands if a step splits them.
        steps = tuple(step for step in recipe.steps if step.kind not in ("raise", "slow"))
        recipe = replace(recipe, steps=steps, rows=chance.choice((0, 100, 5_000, 50_000, 200_000)))
        actions = ACTIONS if _can_persist(recipe) else ACTIONS[:-1]
        return cls(number, recipe, chance.choice(MODES), chance.choice(actions))

    def describe(self) -> str:
        """One line."""
        return f"{self.number} {self.mode}, {self.action}: {self.recipe.describe()}"

    def difference(self, spark: Any) -> str:
        """Run it, and say how its rows differ from those that must come out; nothing where they are right."""
        expected = self.recipe.expected()
        stream = self.recipe.stream(spark)
        if self.action == "counted":
            return _difference(stream.toDF().count(), expected.num_rows)
        if self.action == "persisted":
            stream = stream.persist()
        try:
            frame = stream.toDF()
            found = [
                in_types(frame.toArrow(), expected.schema) for _ in range(2 if self.action == "read twice" else 1)
            ]
        finally:
            if self.action == "persisted":
                stream.unpersist()
        wrong = [table for table in found if not table.equals(expected)]
        return _difference(wrong[0].num_rows, expected.num_rows) or "other rows, as many" if wrong else ""


def _can_persist(recipe: Recipe) -> bool:
    """Tell whether the persisted stream is no broadcast one; of a stream by key that is the one before the key.

    To bring to one task what is in one already is no exchange.
    """
    kinds = [step.kind for step in recipe.steps if isinstance(step, Exchange)]
    while kinds[-1] == "one" and len(kinds) > 1:
        kinds.pop()
    if kinds[-1] == "key":
        kinds.pop()
    return bool(recipe.aggregate) or not kinds or kinds[-1] != "broadcast"


def in_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in order, in these types."""
    return in_order(pa.table(table.columns, names=table.column_names).cast(schema))


def _difference(found: int, expected: int) -> str:
    return "" if found == expected else f"{found:,} rows where {expected:,} must come out"


class Strikes:
    """Kills a worker again and again, and stops this process now and then, while a `with` block runs."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - chance, not a secret
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._every, args=(seconds, first, strike), name="penstock-torture", daemon=True)
            for seconds, first, strike in (
                (_KILL_SECONDS, _KILL_SECONDS, self._kill),
                (_PAUSE_EVERY, _PAUSE_EVERY / 2, self._pause),
            )
        ]
        self.kills = self.pauses = 0

    def __enter__(self) -> Strikes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _every(self, seconds: float, first: float, strike: Callable[[], None]) -> None:
        wait = first
        while not self._over.wait(wait):
            strike()
            wait = seconds

    def _kill(self) -> None:
        self.kills += kill_a_worker(self._chance)

    def _pause(self) -> None:
        self.pauses += 1
        arguments = [str(os.getpid()), str(_PAUSE_SECONDS)]
        subprocess.run([sys.executable, "-c", _PAUSER, *arguments], check=True)


@dataclass(slots=True)
class LongSession:
    """One held session; `run` does it all."""

    seed: int
    seconds: float
    say: Say
    failures: list[str] = field(default_factory=list)
    figures: list[Figures] = field(default_factory=list)
    right: int = 0
    clear_errors: int = 0

    def run(self, spark: Any) -> list[str]:
        """Run it and return the faults; prints the figures of each round."""
        sessions = {mode: spark.newSession() for mode in MODES}
        for mode, session in sessions.items():
            session.conf.set("spark.penstock.shuffle.mode", mode)
        end, number = time.monotonic() + self.seconds, 0
        with Strikes(self.seed) as strikes, ThreadPoolExecutor(_AT_ONCE, "penstock-torture") as at_once:
            while time.monotonic() < end:
                jobs = [LongJob.random(self.seed, number + each) for each in range(_ROUND)]
                number += _ROUND
                for job in jobs[: _ROUND // 2]:
                    self._run(job, sessions[job.mode], strikes)
                rest = jobs[_ROUND // 2 :]
                list(at_once.map(lambda job: self._run(job, sessions[job.mode], strikes), rest))
                self._look(spark, number, strikes)
        grown = growth(self.figures)
        self.say(
            f"session, seed {self.seed}: {number} jobs, {self.right} right, {self.clear_errors} with a clear error"
            f" after a kill, {len(self.failures)} wrong; {strikes.kills} kills, {strikes.pauses} pauses;"
            f" {', '.join(grown) or 'nothing grew'}"
        )
        return [*self.failures, *grown]

    def _run(self, job: LongJob, spark: Any, strikes: Strikes) -> None:
        before = strikes.kills
        outcome: list[str | Exception] = []

        def work() -> None:
            try:
                outcome.append(job.difference(spark))
            except Exception as error:  # noqa: BLE001 - which errors are right is what is being asked
                outcome.append(error)

        worker = threading.Thread(target=work, name="penstock-torture-job", daemon=True)
        worker.start()
        worker.join(_JOB_SECONDS)
        if outcome == [""]:
            self.right += 1
        elif outcome and isinstance(outcome[0], Exception) and strikes.kills > before and _is_clear(outcome[0]):
            self.clear_errors += 1
            self.say(f"ok   {job.describe()}: {_last_line(outcome[0])}")
        else:
            how = f"did not end within {_JOB_SECONDS:g} s" if not outcome else repr(outcome[0])[:300]
            self.failures.append(f"{job.describe()}: {how}")
            self.say(f"FAIL {self.failures[-1]}")

    def _look(self, spark: Any, number: int, strikes: Strikes) -> None:
        from penstock.spark.runtime import SparkRuntime

        results = SparkRuntime.of(spark).results
        held = len(results)
        results.collect()
        gc.collect()
        pa.default_memory_pool().release_unused()
        give_back()
        self.figures.append(look(spark.sparkContext.applicationId) | {"results": len(results)})
        self.say(
            f"after {number} jobs, {strikes.kills} kills, {strikes.pauses} pauses: {describe(self.figures[-1])}"
            f" (of {held} before the garbage was collected)"
        )


def _is_clear(error: Exception) -> bool:
    is_known = isinstance(error, PenstockError) or type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
    return is_known and str(error).strip() != ""


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error: " in line and not line.startswith("pyspark.")] or lines
    return f"{type(error).__name__}: {telling[-1]}"[:200]
