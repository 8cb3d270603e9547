# SPDX-License-Identifier: Apache-2.0
"""Lazy results: jobs that run when opened, results that are there already, losses, and what readers are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from job_graphs import chain
from penstock.errors import JobError, PartitionExpiredError, PartitionLostError, SlotsError, SlotsLostError
from penstock.graph.job_graph import JobGraph
from penstock.job.core.execution.capacity import SlotsReturnedError
from penstock.job.core.result import FinishedJob, JobResult
from penstock.job.core.states import JobState
from penstock.job.launcher import Rerun, Submission
from penstock.job.results.result_core import MadeResult
from penstock.job.results.results import ResultCalls, Results
from penstock.link.master import ReadAnswer, ReadResult
from penstock.settings import Settings
from penstock.shuffle import DatasetId, PartitionId, PartitionKind, ShuffleDescriptor
from penstock.testing import DEADLINE

KEPT = (
    ShuffleDescriptor(
        PartitionId(DatasetId("j1", 0, is_result=True), 0, 1), "local", PartitionKind.BLOCKING_PERSISTENT
    ),
)


class Rig:
    """Results whose jobs end at once, or when `go` is set."""

    def __init__(self, partitions: int = 0, how: str = "hash") -> None:
        self.ran: list[str] = []
        self.released: list[str] = []
        self.results = Results(ResultCalls(self.run_job, self.lose, self.released.append))
        self.told: list[str] = []
        self.go: asyncio.Event | None = None
        self.error: JobError | None = None
        self.plan = b"a plan"
        self.graph = chain(1, partitions or 1, how=how)
        self._partitions = partitions

    def run_job(self, submission: Submission) -> asyncio.Future[FinishedJob]:
        """A job with so many partitions."""
        self.ran.append(submission.job)
        return asyncio.ensure_future(self._run(submission))

    def lose(self, partition: PartitionId, cause: str) -> None:
        """As the JobMaster: the job's result is lost."""
        self.told.append(f"{partition}: {cause}")
        self.results.lost(partition.job)

    def submission(self, *, again: bool = False) -> Submission:
        """The next job."""
        job = f"j{len(self.ran) + 1}"
        return Submission(job, self.graph, Settings(), 1, again=self.again if again else None)

    def again(self, graph: JobGraph) -> Rerun:
        """The next job, which runs one more time."""
        assert all(not edge.kind.runs_together for edge in graph.edges)
        return Rerun(self.submission(again=True), self.plan)

    async def opened(self, index: int = 0, stage: int = 1) -> ReadResult:
        """A result of which a partition is to be read."""
        self.results.add("r1", lambda: self.submission(again=True))
        partitions = await self.results.open("r1")
        return ReadResult("r1", index, partitions[index].partition, stage)

    async def read(self, request: ReadResult) -> ReadAnswer:
        """As a read task: asked again where that is the answer."""
        while (answer := await self.results.read(request)).ask_again:
            pass
        return answer

    async def _run(self, submission: Submission) -> FinishedJob:
        if self.go is not None:
            await self.go.wait()
        if self.error is not None:
            raise self.error
        made = tuple(partition_of(submission.job, index) for index in range(self._partitions))
        return FinishedJob(JobResult(submission.job, "test", JobState.FINISHED, 1.0), made, submission.graph)


def partition_of(job: str, index: int) -> ShuffleDescriptor:
    """A partition of a result."""
    return ShuffleDescriptor(
        PartitionId(DatasetId(job, 1, is_result=True), index, 1), "local", PartitionKind.BLOCKING_PERSISTENT
    )


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, in time."""
    asyncio.run(asyncio.wait_for(work, DEADLINE))


def test_actions_that_find_planning_failed() -> None:
    """The one that was planned is told why, however often it asks; the next runs the job, fit for any slots."""

    async def act() -> None:
        rig = Rig(2)
        rig.results.add("r1", lambda: rig.submission(again=True))
        rig.error = JobError("boom")
        with pytest.raises(JobError, match="boom"):
            await rig.results.open("r1")
        for _ in range(2):
            with pytest.raises(JobError, match="boom"):
                await rig.results.open("r1", "action 1")
        assert rig.ran == ["j1"]
        rig.error = JobError("bang")
        for _ in range(2):
            with pytest.raises(JobError, match="bang"):
                await rig.results.open("r1", "action 2")
        assert len(rig.ran) == 2
        rig.error = None
        assert len(await rig.results.open("r1", "action 3")) == 2
        assert len(await rig.results.open("r1", "action 1")) == 2
        assert len(rig.ran) == 3

    run(act())


def test_a_job_that_would_be_refused_is_not_changed() -> None:
    """A job that asks for more slots than there are is refused in later actions too, not run in another way."""

    async def act() -> None:
        rig = Rig(2)
        rig.graph = chain(3, 3)
        rig.results.add("r1", lambda: rig.submission(again=True))
        seen: list[Submission] = []
        run_job = rig.results._calls.run
        rig.results._calls = ResultCalls(lambda made: (seen.append(made), run_job(made))[1])
        await rig.results.open("r1", "action 1")
        assert [made.graph for made in seen] == [rig.graph]

    run(act())


class Outcomes:
    """A rig whose first runs end with these errors; what is submitted later goes well."""

    def __init__(self, *errors: SlotsError) -> None:
        self.rig = Rig(2)
        self.runs: list[Submission] = []
        self._errors = list(errors)
        self._run_job = self.rig.results._calls.run
        self.rig.results._calls = ResultCalls(self.run_job)
        self.rig.results.add("r1", self.rig.submission)

    def run_job(self, submission: Submission) -> asyncio.Future[FinishedJob]:
        """The next run."""
        self.runs.append(submission)
        self.rig.ran.append(submission.job)
        return failed(self._errors.pop(0)) if self._errors else self._run_job(submission)

    @property
    def may_wait(self) -> list[bool]:
        """Which runs might wait for slots."""
        return [run.may_wait for run in self.runs]


LOST = SlotsLostError("environment b is lost")


def test_a_job_whose_slots_went_is_planned_anew() -> None:
    """Its build is asked again, for the slots that are left, and once more for those that came back."""

    async def act() -> None:
        left, back = (
            Outcomes(LOST),
            Outcomes(LOST, SlotsReturnedError("4 slots"), LOST, SlotsReturnedError("3 slots")),
        )
        for outcomes, runs in ((left, 2), (back, 5)):
            assert len(await outcomes.rig.results.open("r1")) == 2
            assert outcomes.may_wait == [False, *[True] * (runs - 1)]
            assert outcomes.rig.results.is_opened(outcomes.runs[-1].job)
            assert not outcomes.rig.results.is_opened(outcomes.runs[0].job)

    run(act())


def test_a_job_that_waited_for_its_slots_in_vain_says_what_was_lost() -> None:
    """And how long that was; whoever opens it next begins from the start."""

    async def act() -> None:
        outcomes = Outcomes(LOST, SlotsError("job x waited 60 s"))
        with pytest.raises(SlotsLostError, match=r"environment b is lost\. Planned again, job x waited 60 s"):
            await outcomes.rig.results.open("r1")
        assert len(await outcomes.rig.results.open("r1")) == 2
        assert outcomes.may_wait == [False, True, False]

    run(act())


def test_a_plan_for_what_is_left_that_cannot_be_made_says_what_was_lost() -> None:
    """No executor may be there at all; without a loss before, that is all there is to say."""

    async def act() -> None:
        outcomes = Outcomes(LOST)
        errors = [SlotsError("no Spark executor has registered")]

        def build() -> Submission:
            if outcomes.runs and errors:
                raise errors.pop()
            return outcomes.rig.submission()

        outcomes.rig.results.add("r1", build)
        with pytest.raises(SlotsLostError, match=r"b is lost\. Planned again, no Spark executor has registered"):
            await outcomes.rig.results.open("r1")

    run(act())


def test_what_was_made_meanwhile_is_taken_where_a_job_lost_its_slots() -> None:
    """Somebody persisted the stream: there is nothing to plan anew."""

    async def act() -> None:
        outcomes = Outcomes(LOST)
        made = MadeResult(frozenset({"j7"}), KEPT)
        outcomes.rig.results.add("r1", lambda: made if outcomes.runs else outcomes.rig.submission())
        assert await outcomes.rig.results.open("r1") == KEPT
        assert len(outcomes.runs) == 1
        assert outcomes.rig.results.is_opened("j7")

    run(act())


def failed(error: Exception) -> asyncio.Future[FinishedJob]:
    """The end of a job that was not well."""
    future: asyncio.Future[FinishedJob] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def test_a_made_result_runs_no_job() -> None:
    """Its partitions are given; when a job that made them is forgotten, the next opening builds again."""

    async def act() -> None:
        rig = Rig()
        built: list[int] = []

        def build() -> MadeResult:
            built.append(1)
            return MadeResult(frozenset({"j7", "j8"}), KEPT)

        rig.results.add("r1", build)
        assert await rig.results.open("r1") == KEPT
        assert await rig.results.open("r1") == KEPT
        assert rig.results.is_opened("j8")
        assert len(built) == 1
        rig.results.forget("j8")
        assert not rig.results.is_opened("j8")
        assert await rig.results.open("r1") == KEPT
        assert len(built) == 2
        assert not rig.ran

    run(act())


def test_a_watcher_hears_once() -> None:
    """Of a loss, not of a release; the lazy results of that job are opened anew."""

    async def act() -> None:
        rig = Rig()
        heard: list[str] = []
        rig.results.watch("j1", lambda: heard.append("j1"))
        rig.results.watch("j2", lambda: heard.append("j2"))
        rig.results.add("r1", rig.submission)
        await rig.results.open("r1")
        assert rig.results.lost("j1")
        assert not rig.results.lost("j1")
        rig.results.forget("j2")
        assert not rig.results.lost("j2")
        await rig.results.open("r1")
        assert heard == ["j1"]
        assert rig.ran == ["j1", "j2"]

    run(act())


def test_builds_do_not_wait_for_each_other() -> None:
    """More builds may wait at the same time than the event loop has threads, for one that begins last."""

    async def act() -> None:
        rig = Rig()
        go = threading.Event()

        def waiting() -> MadeResult:
            assert go.wait(DEADLINE)
            return MadeResult(frozenset(), KEPT)

        def last() -> MadeResult:
            go.set()
            return MadeResult(frozenset(), KEPT)

        for number in range(64):
            rig.results.add(f"w{number}", waiting)
        rig.results.add("last", last)
        names = [*(f"w{number}" for number in range(64)), "last"]
        assert await asyncio.gather(*(rig.results.open(name) for name in names)) == [KEPT] * 65

    run(act())


def test_a_failed_build_is_tried_again() -> None:
    """It is raised where the result is opened, and an unknown result has its own answer."""

    async def act() -> None:
        rig = Rig()
        errors = [JobError("boom")]

        def build() -> Submission:
            if errors:
                raise errors.pop()
            return rig.submission()

        rig.results.add("r1", build)
        with pytest.raises(JobError, match="boom"):
            await rig.results.open("r1")
        assert await rig.results.open("r1") == ()
        with pytest.raises(PartitionExpiredError, match="r9"):
            await rig.results.open("r9")

    run(act())


def test_what_is_given_up_while_it_is_looked_up_is_looked_up_again() -> None:
    """A made result whose job is forgotten before it is handed out is not kept: the build is asked once more."""

    async def act() -> None:
        rig = Rig()
        loop = asyncio.get_running_loop()
        given: list[str] = []

        def build() -> MadeResult:
            given.append(f"j{len(given) + 1}")
            if len(given) == 1:
                done = threading.Event()
                loop.call_soon_threadsafe(lambda: (rig.results.forget("j1"), done.set()))
                assert done.wait(DEADLINE)
            return MadeResult(frozenset({given[-1]}), KEPT)

        rig.results.add("r1", build)
        assert await rig.results.open("r1") == KEPT
        assert given == ["j1", "j2"]

    run(act())


# --- those who don't any more


def test_what_nobody_reads_is_released() -> None:
    """With the runs it was made again from; nothing is known of it any more, and dropping it twice is the same."""

    async def act() -> None:
        rig = Rig(1)
        request = await rig.opened()
        rig.results.lost("j1")
        assert await rig.read(replace(request, leased="j2")) == ReadAnswer(partition_of("j2", 0))
        rig.released.clear()
        rig.results.lost("j2")
        rig.results.drop("r1")
        rig.results.drop("r1")
        assert rig.released == ["j2"]
        with pytest.raises(PartitionExpiredError, match="r1"):
            await rig.results.open("r1")
        await rig.opened()
        rig.results.drop("r1")
        assert rig.released == ["j2", "j3"]

    run(act())


def test_a_job_under_way_ends_before_its_result_goes() -> None:
    """The caller who asked for it goes away meanwhile: the job runs to its end, and is released then."""

    async def act() -> None:
        rig = Rig(1)
        rig.go, submitted = asyncio.Event(), asyncio.Event()
        run_job = rig.results._calls.run

        def noted(submission: Submission) -> asyncio.Future[FinishedJob]:
            submitted.set()
            return run_job(submission)

        rig.results._calls = replace(rig.results._calls, run=noted)
        rig.results.add("r1", lambda: rig.submission(again=True))
        opening = asyncio.ensure_future(rig.results.open("r1"))
        await submitted.wait()
        rig.results.drop("r1")
        assert rig.released == []
        rig.go.set()
        await opening
        assert rig.released == ["j1"]

    run(act())


def test_what_others_made_is_not_released() -> None:
    """The partitions of a persisted stream stay, whoever drops a DataFrame over them."""

    async def act() -> None:
        rig = Rig(1)
        rig.results.add("r1", lambda: MadeResult(frozenset({"j7"}), KEPT))
        assert await rig.results.open("r1") == KEPT
        rig.results.drop("r1")
        assert rig.released == []

    run(act())


# --- those who read


def test_who_reads_what_is_there_is_left_alone() -> None:
    """Also where the result is unknown, or can't be made again."""

    async def act() -> None:
        rig = Rig(2)
        request = await rig.opened()
        assert await rig.read(request) == ReadAnswer()
        assert await rig.read(replace(request, result="r9")) == ReadAnswer()
        rig.results.add("r2", rig.submission)
        await rig.results.open("r2")
        rig.results.lost("j2")
        assert await rig.read(ReadResult("r2", 0, partition_of("j2", 0).partition)) == ReadAnswer()
        assert rig.ran == ["j1", "j2"]

    run(act())


def test_a_lost_partition_is_made_again_once_for_all() -> None:
    """Each reader works for the one job; those it has let go wait for its end; the rest of the old run goes then."""

    async def act() -> None:
        rig = Rig(3)
        request = await rig.opened()
        rig.results.lost("j1")
        rig.go = asyncio.Event()
        requests = [
            replace(request, index=index, partition=partition_of("j1", index).partition) for index in range(3)
        ]
        answers = await asyncio.gather(*(rig.read(each) for each in requests))
        assert answers == [ReadAnswer(job="j2", plan=b"a plan")] * 3
        waiting = [asyncio.ensure_future(rig.read(replace(each, leased="j2"))) for each in requests]
        opening = asyncio.ensure_future(rig.results.open("r1"))
        await asyncio.sleep(0)
        assert rig.released == []
        rig.go.set()
        new = [partition_of("j2", index) for index in range(3)]
        assert await asyncio.gather(*waiting) == [ReadAnswer(partition) for partition in new]
        assert await opening == tuple(new)
        assert rig.ran == ["j1", "j2"]
        assert rig.released == ["j1"]
        assert rig.results.is_opened("j2")

    run(act())


def test_a_reader_that_finds_it_lost_says_so() -> None:
    """The JobMaster hears it once; what a later reader says of the earlier run changes nothing."""

    async def act() -> None:
        rig = Rig(2)
        request = await rig.opened()
        lost = replace(request, lost="no such file", leased="j2")
        assert await rig.read(lost) == ReadAnswer(partition_of("j2", 0))
        assert await rig.read(lost) == ReadAnswer(partition_of("j2", 0))
        assert rig.told == ["j1-result1.0#1: no such file"]
        assert await rig.read(replace(request, partition=partition_of("j2", 0).partition)) == ReadAnswer()
        assert rig.ran == ["j1", "j2"]

    run(act())


def test_lost_again_is_made_again() -> None:
    """By the same plan, as often as it is needed."""

    async def act() -> None:
        rig = Rig(1)
        request = await rig.opened()
        for number in range(2, 6):
            rig.results.lost(f"j{number - 1}")
            answer = await rig.read(replace(request, leased=f"j{number}"))
            assert answer == ReadAnswer(partition_of(f"j{number}", 0))
        assert rig.ran == [f"j{number}" for number in range(1, 6)]

    run(act())


def test_a_failed_rerun_is_told_to_those_who_wait() -> None:
    """With its cause; nobody hears of it later, and the next reader tries again."""

    async def act() -> None:
        rig = Rig(1)
        request = replace(await rig.opened(), leased="j2")
        rig.results.lost("j1")
        rig.error = JobError("boom")
        with pytest.raises(PartitionLostError, match=r"j1-result1.*could not be recomputed: boom"):
            await rig.read(request)
        rig.error = None
        assert await rig.read(replace(request, leased="j3")) == ReadAnswer(partition_of("j3", 0))

    run(act())


@pytest.mark.parametrize("how", ["hash", "rebalance"])
def test_a_stage_reads_one_run_unless_they_are_alike(how: str) -> None:
    """Rows that go where their values say are the same on every run; others may not be mixed, the next stage may."""

    async def act() -> None:
        rig = Rig(2, how)
        request = await rig.opened(index=0)
        assert await rig.read(request) == ReadAnswer()
        other = ReadResult("r1", 1, partition_of("j1", 1).partition, request.stage, "no such file", "j2")
        if how == "hash":
            assert await rig.read(other) == ReadAnswer(partition_of("j2", 1))
        else:
            with pytest.raises(PartitionLostError, match="run the action again"):
                await rig.read(other)
        assert await rig.read(replace(other, stage=2, lost="")) == ReadAnswer(partition_of("j2", 1))
        assert rig.ran == ["j1", "j2"]

    run(act())


def test_who_could_not_read_does_not_count() -> None:
    """All were told to read, and none could: then the stage may read the new run, whatever the plan is."""

    async def act() -> None:
        rig = Rig(2, "rebalance")
        request = await rig.opened(index=0)
        requests = [replace(request, index=index, partition=partition_of("j1", index).partition) for index in (0, 1)]
        for each in requests:
            assert await rig.read(each) == ReadAnswer()
        rig.go = asyncio.Event()
        lost = [replace(each, lost="its host is gone", leased="j2") for each in requests]
        waiting = [asyncio.ensure_future(rig.read(each)) for each in lost]
        await asyncio.sleep(0)
        rig.go.set()
        assert await asyncio.gather(*waiting) == [ReadAnswer(partition_of("j2", index)) for index in (0, 1)]

    run(act())


def test_a_plan_too_large_is_not_sent() -> None:
    """The reader is told, the job runs, and what it makes is read by whoever comes later."""

    async def act() -> None:
        rig = Rig(1)
        rig.plan = bytes(9 << 20)
        request = await rig.opened()
        rig.results.lost("j1")
        rig.go = asyncio.Event()
        with pytest.raises(PartitionLostError, match="9 MB"):
            await rig.read(request)
        rig.go.set()
        assert await rig.results.open("r1") == (partition_of("j2", 0),)
        assert await rig.read(request) == ReadAnswer(partition_of("j2", 0))

    run(act())
