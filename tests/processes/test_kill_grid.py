# SPDX-License-Identifier: Apache-2.0
"""The kill grid: who is killed x in which phase x over which exchange, without Spark and with all processes real.

Two producers, two consumers, two executors with an environment process each, so that every consumer reads one
producer over TCP. Gates in the user's code hold the job in exactly the wanted phase (`penstock.torture.gates`), then
there is one SIGKILL. What must come of it: every row once, and no subtask run again that need not be.

Victims. `producer` and `consumer` are the process that works, or has worked, on p0 and c0. `environment`, `executor`
and `host` are those beside p0 while writing, beside c0 while reading, and beside c1, the consumer that still runs,
in the phase `half`; `finished environment` and `finished executor` are those beside c0 there. An executor's death
ends all its workers and leaves its environment process; a host's death ends both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from process_cluster import PRELOADED, ProcessCluster, kill

from penstock.job.master import JobHandle
from penstock.testing import wait_until
from penstock.testing.process_launcher import Nursery
from penstock.torture import gates as gated
from penstock.torture.gates import Gates

pytestmark = pytest.mark.processes

WAIT = 30.0
ALL = "p0 p1 c0 c1"
NONE = ""
"""In the table, `p@` stands for the producers whose partitions the victim held, `c@` for its consumers."""

REGION = "a pipelined exchange keeps nothing: both ends are one region, and its finished tasks run again too"
STORED = "the partitions are complete, and the environments hold them, not the processes that wrote them"
IDLE = "nothing runs there any more, and what it wrote is with the environments"
LOST = "a partition is gone: its producer makes it again, and who knows the lost one and has not ended starts again"

TABLE: dict[tuple[str, str, str], tuple[str, str]] = {
    ("pipelined", "writing", "producer"): (ALL, REGION),
    ("pipelined", "writing", "consumer"): (ALL, REGION),
    ("pipelined", "writing", "environment"): (ALL, REGION),
    ("pipelined", "writing", "executor"): (ALL, REGION),
    ("pipelined", "writing", "host"): (ALL, REGION),
    ("pipelined", "reading", "producer"): (NONE, "it has ended, and the environment holds what is not read yet"),
    ("pipelined", "reading", "consumer"): (ALL, REGION),
    ("pipelined", "reading", "environment"): (ALL, REGION),
    ("pipelined", "reading", "executor"): (ALL, REGION),
    ("pipelined", "reading", "host"): (ALL, REGION),
    ("pipelined", "half", "producer"): (NONE, IDLE),
    ("pipelined", "half", "consumer"): (NONE, IDLE),
    ("pipelined", "half", "environment"): (ALL, REGION),
    ("pipelined", "half", "executor"): (ALL, REGION),
    ("pipelined", "half", "host"): (ALL, REGION),
    ("pipelined", "half", "finished environment"): (ALL, "c0's result is gone, and what c0 has read exists once"),
    ("pipelined", "half", "finished executor"): (NONE, IDLE),
    ("blocking", "writing", "producer"): ("p0", "nobody has read, and the other producer's partition is its own"),
    ("blocking", "writing", "environment"): ("p0", "the other producer is beside another environment"),
    ("blocking", "writing", "executor"): ("p0", "the other producer is on another executor"),
    ("blocking", "writing", "host"): ("p0", "the other producer is on another host"),
    ("blocking", "reading", "producer"): ("c@", "its worker has gone on to a consumer; " + STORED),
    ("blocking", "reading", "consumer"): ("c0", STORED),
    ("blocking", "reading", "environment"): ("p@ c0 c1", LOST),
    ("blocking", "reading", "executor"): ("c0", STORED),
    ("blocking", "reading", "host"): ("p@ c0 c1", LOST),
    ("blocking", "half", "producer"): (NONE, "its worker has ended c0 too; " + IDLE),
    ("blocking", "half", "consumer"): (NONE, IDLE),
    ("blocking", "half", "environment"): ("p@ c1", LOST + "; c0 has ended, and its result is elsewhere"),
    ("blocking", "half", "executor"): ("c1", STORED),
    ("blocking", "half", "host"): ("p@ c1", LOST + "; c0 has ended, and its result is elsewhere"),
    ("blocking", "half", "finished environment"): ("p@ c0 c1", LOST + "; c0's result is gone too"),
    ("blocking", "half", "finished executor"): (NONE, IDLE),
}
"""What runs again, and why no more and no less."""

NO_SENSE = {
    ("blocking", "writing", "consumer"): "a consumer starts when all producers of the exchange have ended",
}
"""Cells that can't be: what there would be to kill is not there."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests of this file: it holds nothing of theirs."""
    with Nursery(PRELOADED) as nursery:
        yield nursery


@pytest.fixture
def cluster(nursery: Nursery) -> Iterator[ProcessCluster]:
    """A new one for each test."""
    cluster = ProcessCluster(nursery)
    yield cluster
    cluster.close()


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that is held in a phase."""

    cluster: ProcessCluster
    gates: Gates
    mode: str
    handle: JobHandle

    @classmethod
    def start(cls, cluster: ProcessCluster, folder: Path, mode: str, phase: str) -> HeldJob:
        """Submit it and wait until it is in its phase."""
        gates = Gates(str(folder))
        gates.prepare(phase)
        job = cls(cluster, gates, mode, cluster.submit(gated.stream(gates, mode)))
        ended = {"writing": (), "reading": ("v0.0", "v0.1"), "half": ("v0.0", "v0.1", "v1.0")}[phase]
        there = ("p0", "p1") if phase == "writing" and mode == "blocking" else ("p0", "p1", "c0", "c1")
        wait_until(lambda: all(gates.pids(place) for place in there), f"{there} are there", WAIT)
        wait_until(lambda: all(job.has_ended(place) for place in ended), f"{ended} have ended", WAIT)
        return job

    def has_ended(self, place: str) -> bool:
        """Whether a subtask has ended well."""
        return any(
            f"/{place}#" in entry and "FINISHED" in entry
            for entry in self.cluster.trace(self.handle.job, "task_finished")
        )

    def beside(self, place: str) -> str:
        """All that was first given to the executor of this subtask."""
        group = self.gates.group(place)
        known = [other for other in ALL.split() if self.gates.pids(other)]
        return " ".join(other for other in known if self.gates.group(other) == group)

    def restarted(self, trace: tuple[tuple[float, str, str], ...]) -> list[str]:
        """The subtasks that ran again, with repetitions."""
        names = {"v0": "p", "v1": "c"}
        entries = [ids.partition(".") for _, name, ids in trace if name == "task_restarted"]
        return sorted(names[vertex] + index for vertex, _, index in entries)

    def finish(self) -> list[str]:
        """Open all gates; the job ends with the right rows. The subtasks that ran again."""
        self.gates.open_all()
        finished = self.handle.wait(WAIT)
        found = self.cluster.read(finished, gated.rows().schema)
        assert found.sort_by("id").equals(gated.rows().sort_by("id").combine_chunks())
        return self.restarted(finished.result.trace)


def strike(job: HeldJob, phase: str, victim: str) -> str:
    """Kill; everything that was with the victim."""
    gates, cluster = job.gates, job.cluster
    if victim in ("producer", "consumer"):
        place = f"{victim[0]}0"
        if job.mode == "blocking" and phase == "half" and victim == "producer":
            # One of the two workers has gone on to c1: this is about the other one.
            place = next(other for other in ("p0", "p1") if gates.pids(other) != gates.pids("c1"))
        (pid,) = gates.pids(place)
        with_it = " ".join(other for other in ALL.split() if gates.pids(other) == [pid])
        kill(pid)
        return with_it
    place = {"writing": "p0", "reading": "c0", "half": "c1"}[phase]
    place = "c0" if victim.startswith("finished") else place
    with_it = job.beside(place)
    executor = cluster.executor(gates.group(place))
    if not victim.endswith("executor"):
        kill(cluster.environment_pid(executor))
    if not victim.endswith("environment"):
        executor.kill()
    return with_it


def expected(entry: str, with_it: str) -> list[str]:
    """The subtasks of an entry of the table."""
    found: set[str] = set()
    for word in entry.split():
        found |= {place for place in with_it.split() if place[0] == word[0]} if word.endswith("@") else {word}
    return sorted(found)


@pytest.mark.parametrize(("mode", "phase", "victim"), TABLE, ids="-".join)
def test_cell(cluster: ProcessCluster, tmp_path: Path, mode: str, phase: str, victim: str) -> None:
    """One kill: every row comes out once, and exactly what the table says runs again, each subtask once."""
    job = HeldJob.start(cluster, tmp_path, mode, phase)
    with_it = strike(job, phase, victim)
    entry, reason = TABLE[mode, phase, victim]
    again = expected(entry, with_it)
    if again:
        wait_until(lambda: bool(cluster.trace(job.handle.job, "restart")), "the JobMaster has noticed", WAIT)
    assert job.finish() == again, reason


@pytest.mark.parametrize(("mode", "phase", "victim"), NO_SENSE, ids="-".join)
def test_cell_that_makes_no_sense(
    cluster: ProcessCluster, tmp_path: Path, mode: str, phase: str, victim: str
) -> None:
    """What there would be to kill is not there; the job ends well without a kill."""
    job = HeldJob.start(cluster, tmp_path, mode, phase)
    deployed = cluster.trace(job.handle.job, "task_deployed")
    assert not [entry for entry in deployed if "/v1." in entry], NO_SENSE[mode, phase, victim]
    assert job.finish() == []
