# SPDX-License-Identifier: Apache-2.0
"""Read tasks that lease their slots to the job they wait for: what they get, when they are let go or refused."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import Cluster, SparkTask
from effort import examples
from job_graphs import BLOCKING, chain, open_sink, pipeline
from penstock.errors import PenstockError, SlotsError
from penstock.graph.job_graph import JobGraph
from penstock.graph.reruns import for_any_slots
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.core.deadlines import DeadlineKind
from penstock.job.core.ids import LEASED, WorkerId, WorkerNumber
from penstock.settings import RestartSettings
from penstock.shuffle import AttemptId


class Lessors(Cluster):
    """A cluster with read tasks, which hold cores of Spark's that the JobMaster knows nothing of."""

    def __init__(self, slots: int, readers: int) -> None:
        super().__init__(slots)
        self.refused: list[PenstockError] = []
        for number in range(readers):
            task = SparkTask(WorkerId("j1", WorkerNumber(-1 - number), number), LEASED, "a")
            self.tasks.append(task)

    @property
    def readers(self) -> list[SparkTask]:
        """Those that still hold a core."""
        return [task for task in self.tasks if task.spark_job == LEASED]

    def lease(self, *readers: SparkTask) -> None:
        """They ask for work, and all that follows happens."""
        for reader in readers:
            self._ask(reader)
        self.run()

    def rerun(self, graph: JobGraph, **how: object) -> None:
        """The job that all readers wait for is submitted; all that follows happens."""
        self.submit(for_any_slots(graph), **how)  # type: ignore[arg-type]

    def _answered(self, call: int, attempt: AttemptId | None, answer: object) -> None:
        if isinstance(answer, PenstockError):
            self.refused.append(answer)
        super()._answered(call, attempt, answer)


def test_a_job_runs_on_nothing_but_leased_slots() -> None:
    """One slot, held by a reader: it runs all subtasks, one after the other, and is let go when the job is over."""
    cluster = Lessors(slots=1, readers=1)
    cluster.rerun(pipeline(2, 2, result=True))
    assert cluster.working() == []
    cluster.lease(*cluster.readers)
    assert cluster.working() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert [item.partition.index for item in cluster.ended["j1"].partitions] == [0, 1]
    assert cluster.readers == []
    cluster.check_answers()
    cluster.check_partitions()


def test_a_job_in_the_queue_begins_on_leased_slots() -> None:
    """Another job has all slots: the one that readers wait for does not stand behind it."""
    cluster = Lessors(slots=2, readers=1)
    cluster.submit(chain(2, result=False), "j0")
    cluster.rerun(chain(1))
    assert cluster.core.slots_in_use == 2
    cluster.lease(*cluster.readers)
    assert cluster.working("j1") == [(0, 0)]
    cluster.finish(0, 0)
    assert cluster.ended["j1"].error is None


def test_leased_slots_are_not_counted() -> None:
    """They are somebody else's: the job is still given its own, and both kinds of workers work side by side."""
    cluster = Lessors(slots=3, readers=1)
    cluster.rerun(chain(5))
    assert len(cluster.working()) == 2
    cluster.lease(*cluster.readers)
    assert len(cluster.working()) == 3
    assert cluster.core.slots_in_use <= 3
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_idle_lessors_stay_to_the_end() -> None:
    """While there is nothing for them to do they wait; work that comes later is theirs; at the end all are let go."""
    cluster = Lessors(slots=3, readers=3)
    cluster.rerun(chain(1, 6, kinds=(BLOCKING,)))
    cluster.lease(*cluster.readers)
    assert cluster.working() == [(0, 0)]
    assert sum(1 for reader in cluster.readers if reader.call is not None) == 2
    cluster.finish(0, 0)
    assert len(cluster.working()) == 3
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    assert cluster.readers == []
    cluster.check_answers()


def test_a_lessor_that_dies_takes_only_its_subtask_with_it() -> None:
    """As any worker: what it worked on runs again elsewhere."""
    cluster = Lessors(slots=2, readers=2)
    cluster.rerun(chain(2))
    cluster.lease(*cluster.readers)
    cluster.lose_task(0, 1)
    cluster.finish_job()
    assert cluster.restarted() == [(0, 1)]
    assert cluster.ended["j1"].error is None


def test_a_lessor_comes_back_after_its_environment_died() -> None:
    """Its number is known to nobody then, so it may come again, under the same one."""
    cluster = Lessors(slots=1, readers=1)
    (reader,) = cluster.readers
    cluster.rerun(chain(2), restart=RestartSettings())
    cluster.lease(reader)
    cluster.lose_environment("a", replaced_by="b")
    again = SparkTask(reader.identity, LEASED, "b")
    cluster.tasks.append(again)
    cluster.lease(again)
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_who_comes_too_late_is_let_go() -> None:
    """The job has nothing more to do, or is over: answered at once, either way."""
    cluster = Lessors(slots=2, readers=2)
    first, late = cluster.readers
    cluster.rerun(chain(1))
    cluster.lease(first)
    cluster.finish(0, 0)
    cluster.lease(late)
    assert cluster.readers == []
    cluster.check_answers()


def test_a_dataframe_needs_a_slot_that_is_not_leased() -> None:
    """All slots are leased and the DataFrame is not read: each lessor hears why and what to do; the job goes on."""
    cluster = Lessors(slots=2, readers=2)
    cluster.rerun(pipeline(2, 2, dataframe=True, result=True))
    cluster.lease(*cluster.readers)
    cluster.late_deadline(DeadlineKind.LEASED)
    assert cluster.refused == []  # one came later than this deadline was asked for
    cluster.deadline(DeadlineKind.LEASED)
    assert [type(error) for error in cluster.refused] == [SlotsError, SlotsError]
    assert "all 2 slots are held by tasks that wait" in str(cluster.refused[0])
    assert "persist()" in str(cluster.refused[0])
    assert cluster.readers == []
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_answers()


def test_with_a_slot_left_the_dataframe_is_read() -> None:
    """The lessors wait for it, then help with the rest."""
    cluster = Lessors(slots=3, readers=2)
    cluster.rerun(pipeline(2, 2, dataframe=True, result=True))
    cluster.lease(*cluster.readers)
    cluster.deadline(DeadlineKind.LEASED)
    assert cluster.refused == []
    assert cluster.working() == [(0, 0)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
    cluster.check_answers()


def test_two_jobs_may_starve_each_other() -> None:
    """Half of the slots is leased to each of two jobs with a DataFrame: both are refused."""
    cluster = Lessors(slots=2, readers=2)
    one, other = cluster.readers
    other.identity = WorkerId("j2", other.identity.number, other.identity.spark_attempt)
    cluster.rerun(pipeline(1, 1, dataframe=True, result=True))
    cluster.rerun(pipeline(1, 1, dataframe=True, result=True), job="j2")
    cluster.lease(one, other)
    cluster.deadline(DeadlineKind.LEASED, "j2")
    assert len(cluster.refused) == 2


def test_what_was_chosen_stays_chosen() -> None:
    """The plan of the first run, with the shares it chose, runs again with the same partitions, on other sizes."""
    first = Cluster(slots=4)
    first.submit(open_sink(), target=100)
    sizes = {0: (60,) * 16}
    for subtask in (0, 1):
        first.finish(0, subtask, sizes=sizes)
    first.finish_job()
    (completed,) = first.of(do.CompleteJob)
    assert completed.graph is not None
    chosen = completed.graph.vertex(1)
    assert chosen.shares
    cluster = Lessors(slots=1, readers=1)
    cluster.rerun(completed.graph, target=100)
    cluster.lease(*cluster.readers)
    for subtask in (0, 1):
        cluster.finish(0, subtask, sizes={0: (1,) * 16})
    cluster.finish_job()
    (again,) = cluster.of(do.CompleteJob)
    assert again.graph is not None
    assert again.graph.vertex(1) == chosen
    assert len(again.partitions) == len(completed.partitions)
    assert not any(edge.kind.runs_together for edge in again.graph.edges)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 3), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_whatever_order_things_happen_in(seed: int, stages: list[int], slots: int, dies: bool) -> None:
    """Readers lease, work, die and come late, in any order: the job ends well and every call is answered once."""
    dice = Random(seed)
    readers = dice.randint(1, slots)
    cluster = Lessors(slots, readers)
    graph = chain(*stages)
    # Never given up, and no pause, so that no deadline has to go by.
    restart = RestartSettings(attempts=1000)
    submitted = events.JobSubmitted("j1", for_any_slots(graph), slots, 60, 100, restart)
    cluster.send(submitted)
    waiting = cluster.readers
    victim = cluster.readers[0] if dies and readers > 1 else None
    for _ in range(10_000):
        choices = ["step", "lease"] if waiting else ["step"]
        choices += ["report"] if cluster.working() else []
        choices += ["die"] if victim in cluster.tasks and victim not in waiting else []
        match dice.choice(choices):
            case "lease":
                cluster._ask(waiting.pop())
            case "report":
                cluster.report(cluster.task(*dice.choice(cluster.working())))
            case "die" if victim is not None:
                cluster.lose(victim, retried=False)
                victim = None
            case _:
                moved = cluster.step(dice.randrange)
                if not moved and not waiting and not cluster.working():
                    break
    assert cluster.ended["j1"].error is None
    assert cluster.readers == []
    cluster.check_answers()
    cluster.check_partitions()


def test_a_lessor_may_not_be_taken_for_a_launched_worker() -> None:
    """Numbers of launched workers count up from nought; the constant is none of their Spark jobs' numbers."""
    cluster = Lessors(slots=2, readers=1)
    cluster.rerun(chain(4))
    cluster.lease(*cluster.readers)
    numbers = {task.identity.number for task in cluster.tasks}
    assert len(numbers) == len(cluster.tasks)
    assert all(item.id != LEASED for launched in cluster.of(do.LaunchSparkJobs) for item in launched.spark_jobs)
    cluster.finish_job()
    assert cluster.ended["j1"].error is None
