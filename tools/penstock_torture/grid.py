# SPDX-License-Identifier: Apache-2.0
"""The kill grid under Spark: one job, held in a phase by gates, and one SIGKILL; the rows must come out once each.

Victims: `producer` and `consumer` are the Python workers of p0 and c0; `environment` and `executor` are the
environment process and the JVM beside p0 while writing, beside c0 while reading and beside c1 in the phase `half`.
Executors are there on a cluster only, where each has an environment of its own (`penstock_torture.cluster`). Spark
decides who runs where, so nothing is said here about what must run again; the grid without Spark, in the tests,
says it. Linux only.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.job.core.result import FinishedJob, JobProgress
from penstock.link.rendezvous import rendezvous
from penstock.settings import Settings
from penstock.testing import DEADLINE, wait_until
from penstock_bench.environment import environment_pids
from penstock_torture import gates as gated
from penstock_torture.gates import PHASES, Gates
from penstock_torture.harm import ancestor

MODES = ("pipelined", "blocking", "hybrid", "hybrid_selective")
VICTIMS = ("producer", "consumer", "environment", "executor")
SLOTS = 4


_NOTICE_SECONDS = 20.0
_IDLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the grid."""

    mode: str
    phase: str
    victim: str

    @property
    def name(self) -> str:
        """The name for a line."""
        return f"{self.mode}-{self.phase}-{self.victim}"

    @property
    def makes_sense(self) -> bool:
        """True if there is something to kill: with a blocking exchange nobody reads while it is written."""
        return (self.mode, self.phase, self.victim) != ("blocking", "writing", "consumer")


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """The end of a cell: what ran again, with repetitions; an error, or nothing; whether the rows are right."""

    restarted: tuple[str, ...]
    error: str
    is_right: bool
    seconds: float


def cells(*, cluster: bool) -> list[Cell]:
    """All cells that make sense; executors on a cluster only."""
    victims = VICTIMS if cluster else VICTIMS[:-1]
    found = [Cell(mode, phase, victim) for mode in MODES for phase in PHASES for victim in victims]
    return [cell for cell in found if cell.makes_sense]


class HeldSparkJob:
    """The gated job on a Spark session, on a thread of its own."""

    def __init__(self, spark: Any, mode: str, folder: str) -> None:
        from penstock.spark.runtime import SparkRuntime

        self.gates = Gates(folder)
        self.mode = mode
        self._runtime = SparkRuntime.of(spark)
        self._settings: Settings = self._runtime.settings()
        self._stream = gated.stream(self.gates, mode, spark)
        self._progress: JobProgress | None = None
        self._finished: FinishedJob | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-held-job", daemon=True)
        self._thread.start()

    def reach(self, phase: str) -> None:
        """Lead it into a phase; raises the job's error where it fails on its way."""
        self.gates.reach(phase, self.mode, self._has_ended)

    def finish(self) -> FinishedJob:
        """Open all gates and wait for the end; raises the job's error."""
        self.gates.open_all()
        self._thread.join(DEADLINE)
        if self._error is not None:
            raise self._error
        if self._finished is None:
            raise AssertionError(f"the job did not end within {DEADLINE:g} s")
        return self._finished

    def rows_are_right(self, finished: FinishedJob) -> bool:
        """Read the result and release it."""
        rows = self._runtime.rows(finished, self._stream.schema, self._settings)
        self._runtime.release(finished.result.job)
        columns = gated.rows().to_pydict().values()
        return sorted(rows) == sorted(zip(*columns, strict=True))

    def _run(self) -> None:
        try:
            plan = self._stream.plan(self._settings, self._runtime.total_slots())
            self._finished = self._runtime.finished(lambda: plan.parts, self._settings, on_progress=self._note)
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits
            self._error = error

    def _note(self, progress: JobProgress) -> None:
        self._progress = progress

    def _has_ended(self, place: str) -> bool:
        if self._error is not None:
            raise self._error
        # The gates open one after the other, so numbers tell who has ended.
        vertices = self._progress.vertices if self._progress is not None else ()
        counts = {vertex.vertex: vertex.finished for vertex in vertices}
        return counts.get("pc".index(place[0]), 0) > int(place[1])


def run_cell(spark: Any, cell: Cell) -> CellOutcome:
    """Run one cell on a session of at least four slots; after an executor's death the next one is waited for."""
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(spark)
    wait_until(lambda: runtime.total_slots() >= SLOTS, f"{SLOTS} slots are there", DEADLINE)
    began = time.monotonic()
    restarted: tuple[str, ...] = ()
    is_right, error = False, ""
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        job = HeldSparkJob(spark, cell.mode, folder)
        try:
            job.reach(cell.phase)
            strike(spark, job.gates, cell)
            finished = job.finish()
            restarted = restarts_of(finished)
            is_right = job.rows_are_right(finished)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the cell has failed
            error = f"{type(failure).__name__}: {failure}"
        finally:
            job.gates.open_all()
    return CellOutcome(restarted, error, is_right, time.monotonic() - began)


def restarts_of(finished: FinishedJob) -> tuple[str, ...]:
    """The subtasks that ran again, by the names that the gates give them."""
    places = [ids.removeprefix("v").split(".") for _, _, ids in finished.result.trace_of("task_restarted")]
    return tuple(sorted("pc"[int(vertex)] + index for vertex, index in places))


def strike(spark: Any, gates: Gates, cell: Cell) -> int:
    """Kill, and wait until something runs again or has had the time to; the process, or 0 where it had ended."""
    known = len(gates.marks())
    victim = _victim(spark, gates, cell)
    if victim:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    with suppress(AssertionError):  # where nothing has to run again
        wait_until(lambda: len(gates.marks()) > known, "a subtask runs again", _patience(cell))
    return victim


def _patience(cell: Cell) -> float:
    """A worker that has ended its subtasks is not missed, so there is nothing to wait for."""
    has_ended = {"producer": cell.phase != "writing", "consumer": cell.phase == "half"}
    return _IDLE_SECONDS if has_ended.get(cell.victim) else _NOTICE_SECONDS


def _victim(spark: Any, gates: Gates, cell: Cell) -> int:
    if cell.victim in ("producer", "consumer"):
        return gates.living(f"{cell.victim[0]}0")
    beside = gates.living({"writing": "p0", "reading": "c0", "half": "c1"}[cell.phase])
    executor = ancestor(beside, "java")
    return executor if cell.victim == "executor" else _environment(spark.sparkContext.applicationId, executor)


def _environment(application: str, executor: int) -> int:
    """The environment process of an executor, else the only one of the host."""
    pids = environment_pids(application)
    for pid in pids:
        name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2].decode()
        own = rendezvous(name, str(executor), "").folder.name
        if Path(f"/proc/{pid}/fd/2").readlink().stem.endswith(own):  # its log is called by its folder
            return pid
    (alone,) = pids
    return alone
