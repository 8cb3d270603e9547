# SPDX-License-Identifier: Apache-2.0
"""The kill grid: who is killed x in which phase x over which exchange, without Spark and with all processes real.

Two producers, two consumers, two executors with an environment process each, so that every consumer reads one
producer over TCP. Gates in the user's code hold the job in exactly the wanted phase (`penstock_torture.gates`), then
there is one SIGKILL. It must come to this: every row once, and no subtask run again that need not be.

Victims. `producer` and `consumer` are the process that works, or has worked, on p0 and c0, `other producer` the one
of p1, whose worker takes c0 where consumers start late: p0 ends first, and its worker is let go. `environment`,
`executor` and `host` are those beside p0 while writing, beside c0 while reading, and beside c1, the consumer that
still runs, in the phase `half`; `finished environment` and `finished executor` are those beside c0 there. An
executor's death ends all its workers and leaves its environment process; a host's death ends both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pytest

from effort import THOROUGH, some_of
from penstock.errors import JobCancelledError
from penstock.job.core.result import FinishedJob
from penstock.job.shell.master import JobHandle
from penstock.link.rendezvous import base_folder
from penstock.testing import DEADLINE, wait_until
from penstock_torture import gates as gated
from penstock_torture.gates import Gates
from penstock_torture.process_launcher import Nursery
from process_cluster import PRELOADED, ProcessCluster, kill, lives, pid_of
from underway import listed

pytestmark = pytest.mark.processes

PLACINGS = 20
ALL = "p0 p1 c0 c1"
NONE = ""
"""In the table, `p@` stands for the producers whose partitions the victim held, `c@` for its consumers."""

REGION = "a pipelined exchange keeps nothing: both ends are one region, and its finished tasks run again too"
STORED = "the partitions are complete, and the environments hold them, not the processes that wrote them"
IDLE = "nothing runs there any more, and what it wrote is with the environments"
LOST = "a partition is gone: its producer makes it again, and who knows the lost one and has not ended starts again"
MADE_AGAIN = "the partition is made again, so whoever knows the first one starts again; the other producer goes on"
ONCE = "what was read is gone: who reads again needs both producers again, and they are known to both consumers"

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
    ("blocking", "reading", "producer"): (NONE, "its worker was let go; " + STORED),
    ("blocking", "reading", "other producer"): ("c0", "its worker has gone on to a consumer; " + STORED),
    ("blocking", "reading", "consumer"): ("c0", STORED),
    ("blocking", "reading", "environment"): ("p@ c0 c1", LOST),
    ("blocking", "reading", "executor"): ("c@", STORED),
    ("blocking", "reading", "host"): ("p@ c0 c1", LOST),
    ("blocking", "half", "producer"): (NONE, "its worker was let go; " + STORED),
    ("blocking", "half", "other producer"): (NONE, "its worker has ended c0 too; " + IDLE),
    ("blocking", "half", "consumer"): (NONE, IDLE),
    ("blocking", "half", "environment"): ("p@ c1", LOST + "; c0 has ended, and its result is elsewhere"),
    ("blocking", "half", "executor"): ("c1", STORED),
    ("blocking", "half", "host"): ("p@ c1", LOST + "; c0 has ended, and its result is elsewhere"),
    ("blocking", "half", "finished environment"): ("p@ c0 c1", LOST + "; c0's result is gone too"),
    ("blocking", "half", "finished executor"): (NONE, IDLE),
    ("hybrid", "writing", "producer"): ("p0 c0 c1", MADE_AGAIN),
    ("hybrid", "writing", "consumer"): ("c0", "what is written so far can be read again from its beginning"),
    ("hybrid", "writing", "environment"): ("p0 c0 c1", MADE_AGAIN),
    ("hybrid", "writing", "executor"): ("p0 c0 c1", MADE_AGAIN),
    ("hybrid", "writing", "host"): ("p0 c0 c1", MADE_AGAIN),
    ("hybrid", "reading", "producer"): (NONE, "its worker was let go; " + STORED),
    ("hybrid", "reading", "consumer"): ("c0", STORED),
    ("hybrid", "reading", "environment"): ("p@ c0 c1", LOST),
    ("hybrid", "reading", "executor"): ("c0", STORED),
    ("hybrid", "reading", "host"): ("p@ c0 c1", LOST),
    ("hybrid", "half", "producer"): (NONE, "its worker was let go; " + STORED),
    ("hybrid", "half", "consumer"): (NONE, IDLE),
    ("hybrid", "half", "environment"): ("p@ c1", LOST + "; c0 has ended, and its result is elsewhere"),
    ("hybrid", "half", "executor"): ("c1", STORED),
    ("hybrid", "half", "host"): ("p@ c1", LOST + "; c0 has ended, and its result is elsewhere"),
    ("hybrid", "half", "finished environment"): ("p@ c0 c1", LOST + "; c0's result is gone too"),
    ("hybrid", "half", "finished executor"): (NONE, IDLE),
    ("hybrid_selective", "writing", "producer"): (ALL, ONCE),
    ("hybrid_selective", "writing", "consumer"): (ALL, ONCE),
    ("hybrid_selective", "writing", "environment"): (ALL, ONCE),
    ("hybrid_selective", "writing", "executor"): (ALL, ONCE),
    ("hybrid_selective", "writing", "host"): (ALL, ONCE),
    ("hybrid_selective", "reading", "producer"): (NONE, "it has ended, and the environment holds what is not read"),
    ("hybrid_selective", "reading", "consumer"): (ALL, ONCE),
    ("hybrid_selective", "reading", "environment"): (ALL, ONCE),
    ("hybrid_selective", "reading", "executor"): (ALL, ONCE),
    ("hybrid_selective", "reading", "host"): (ALL, ONCE),
    ("hybrid_selective", "half", "producer"): (NONE, IDLE),
    ("hybrid_selective", "half", "consumer"): (NONE, IDLE),
    ("hybrid_selective", "half", "environment"): ("p0 p1 c1", ONCE + "; c0 has ended, and its result is elsewhere"),
    ("hybrid_selective", "half", "executor"): ("p0 p1 c1", ONCE + "; c0 has ended, and its result is held"),
    ("hybrid_selective", "half", "host"): ("p0 p1 c1", ONCE + "; c0 has ended, and its result is elsewhere"),
    ("hybrid_selective", "half", "finished environment"): (ALL, ONCE + "; c0's result is gone too"),
    ("hybrid_selective", "half", "finished executor"): (NONE, IDLE),
}
"""The subtasks that run again, and why no more and no fewer."""

FEW = (
    ("pipelined", "writing", "producer"),
    ("pipelined", "reading", "host"),
    ("pipelined", "half", "environment"),
    ("blocking", "writing", "environment"),
    ("blocking", "reading", "executor"),
    ("blocking", "half", "environment"),
    ("hybrid", "writing", "consumer"),
    ("hybrid", "reading", "host"),
    ("hybrid", "half", "finished executor"),
    ("hybrid_selective", "writing", "producer"),
    ("hybrid_selective", "reading", "consumer"),
    ("hybrid_selective", "half", "executor"),
)
"""The cells of `make test`: each kind of kill, and each exchange in each phase. `tests/job` has what runs again in
all cells, without processes; the others kill by the same calls, and `make torture` has them all."""

CELLS = list(TABLE) if THOROUGH else list(FEW)

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
        """Submit it and lead it into its phase."""
        gates = Gates(str(folder))
        job = cls(cluster, gates, mode, cluster.submit(gated.stream(gates, mode)))
        gates.reach(phase, mode, job.has_ended)
        if mode != "blocking":
            wait_until(job.are_announced, "the consumers know both partitions")
        return job

    def are_announced(self) -> bool:
        """Tell whether the JobMaster has told the consumers of both partitions."""
        told = self.cluster.trace(self.handle.job, "partition_consumable")
        return all(any(f"-e0.{number}#" in entry for entry in told) for number in range(2))

    def has_ended(self, place: str) -> bool:
        """Tell whether a subtask has ended well; for the first producer also that its worker was let go."""
        name = f"/v{'pc'.index(place[0])}.{place[1]}#"
        ends = self.cluster.trace(self.handle.job, "task_finished")
        ended = any(name in entry and entry.endswith("FINISHED") for entry in ends)
        return ended and (place != "p0" or not lives(self.gates.pids(place)[0]))

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
        try:
            finished = self.handle.wait(DEADLINE)
        except TimeoutError:
            story = self.cluster.master._driver._core.trace(self.handle.job)
            raise AssertionError("the job does not end: " + "\n".join(map(str, story))) from None
        for seconds, name, ids in finished.result.trace:
            print(f"{seconds:8.3f} {name} {ids}")  # shown where the test fails
        found = self.cluster.read(finished, gated.rows().schema)
        assert found.sort_by("id").equals(gated.rows().sort_by("id").combine_chunks())
        return self.restarted(finished.result.trace)


def started_apart(cluster: ProcessCluster, folder: Path, mode: str, phase: str) -> HeldJob:
    """A held job whose producers are on different executors, and its consumers too.

    Workers that come at the same time are given subtasks in the order in which they come, so a job with another
    placing is cancelled and started anew.
    """
    for number in range(PLACINGS):
        own = folder / str(number)
        own.mkdir()
        job = HeldJob.start(cluster, own, mode, phase)
        groups = [job.gates.group(place) for place in ALL.split()]
        if groups[0] != groups[1] and groups[2] != groups[3]:
            return job
        job.handle.cancel("its producers or its consumers are on one executor")
        with pytest.raises(JobCancelledError):
            job.handle.wait(DEADLINE)
    raise AssertionError(f"no placing with both kinds apart among {PLACINGS}")


def strike(job: HeldJob, phase: str, victim: str) -> str:
    """Kill; everything that was with the victim."""
    gates, cluster = job.gates, job.cluster
    if victim.endswith(("producer", "consumer")):
        place = {"producer": "p0", "other producer": "p1", "consumer": "c0"}[victim]
        pid = gates.living(place)
        if pid:
            kill(pid)
        return place
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


@pytest.mark.parametrize(("mode", "phase", "victim"), some_of(CELLS, 2))
def test_cell(cluster: ProcessCluster, tmp_path: Path, mode: str, phase: str, victim: str) -> None:
    """One kill: every row comes out once, and exactly what the table says runs again, each subtask once."""
    # Blocking consumers start when a producer has ended, on the worker that is free then.
    start = HeldJob.start if mode == "blocking" and victim != "finished executor" else started_apart
    job = start(cluster, tmp_path, mode, phase)
    with_it = strike(job, phase, victim)
    entry, reason = TABLE[mode, phase, victim]
    again = expected(entry, with_it)
    if again:
        wait_until(lambda: bool(cluster.trace(job.handle.job, "restart")), "the JobMaster has noticed")
    assert job.finish() == again, reason


@pytest.mark.parametrize(("mode", "phase", "victim"), list(NO_SENSE))
def test_cell_that_makes_no_sense(
    cluster: ProcessCluster, tmp_path: Path, mode: str, phase: str, victim: str
) -> None:
    """The process to be killed is not there; the job ends well without a kill."""
    job = HeldJob.start(cluster, tmp_path, mode, phase)
    deployed = cluster.trace(job.handle.job, "task_deployed")
    assert not [entry for entry in deployed if "/v1." in entry], NO_SENSE[mode, phase, victim]
    assert job.finish() == []


def test_executor_killed_when_the_job_is_over(cluster: ProcessCluster, tmp_path: Path) -> None:
    """The result outlives the executors that made it: environments hold it."""
    job = HeldJob.start(cluster, tmp_path, "blocking", "half")
    job.gates.open_all()
    finished = job.handle.wait(DEADLINE)
    for executor in list(cluster.launcher.executors):
        executor.kill()
    found = cluster.read(finished, gated.rows().schema)
    assert found.sort_by("id").equals(gated.rows().sort_by("id").combine_chunks())


def test_an_environment_that_ends_removes_the_folders_of_killed_ones(cluster: ProcessCluster) -> None:
    """It ends with its application; nobody may start on its host any more, and the killed one held files there."""
    others = folders()  # an environment of another file's tests may just be ending
    killed, last = (cluster.environment_pid(executor) for executor in cluster.launcher.executors)
    kill(killed)
    assert len(folders() - others) == 2
    wait_until(lambda: cluster.attached() == {last}, "the JobMaster has noticed")
    cluster.master.close()
    wait_until(lambda: not folders() - others, "no folder is left")


def folders() -> set[Path]:
    """The rendezvous folders that are there."""
    return set(listed(base_folder())) if base_folder().exists() else set()


def test_environment_killed_when_the_job_is_over(cluster: ProcessCluster, tmp_path: Path) -> None:
    """Its part of the result is refused as lost, never read as empty; the other part can still be read."""
    job = started_apart(cluster, tmp_path, "blocking", "half")
    job.gates.open_all()
    finished = job.handle.wait(DEADLINE)
    one, other = finished.partitions
    assert one.environment != other.environment
    kill(pid_of(one.environment))
    kept = FinishedJob(finished.result, (other,))
    target = other.partition.index
    mine = gated.rows().filter(pc.equal(pc.field("target"), target)).combine_chunks()
    wait_until(lambda: pid_of(one.environment) not in cluster.attached(), "the JobMaster has noticed")
    assert cluster.read(kept, mine.schema).sort_by("id").equals(mine.sort_by("id").combine_chunks())
    with pytest.raises(AssertionError, match="1, 1, 1, 1"):
        cluster.read(finished, mine.schema)
