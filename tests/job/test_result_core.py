# SPDX-License-Identifier: Apache-2.0
"""The core of a lazy result: one run at a time, nothing released that is read, a failure told to one action."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from effort import examples
from job_graphs import chain
from penstock.errors import JobError, PartitionLostError, PenstockError
from penstock.job.core.result import FinishedJob, JobResult
from penstock.job.core.states import JobState
from penstock.job.launcher import Rerun, Submission
from penstock.job.results.result_core import Begin, Builds, Join, Made, MadeResult, Making, ResultCore, Unmade
from penstock.link.master import ReadAnswer, ReadResult
from penstock.settings import Settings
from penstock.shuffle import DatasetId, PartitionId, PartitionKind, ShuffleDescriptor

GRAPH = chain(1, 1)


def submission(job: str) -> Submission:
    """A job that can be run again."""
    return Submission(job, GRAPH, Settings(), 1, again=lambda _: plan(f"{job}+"))


def plan(job: str) -> Rerun:
    """A job once more."""
    return Rerun(submission(job), b"a plan")


def finished(job: str) -> FinishedJob:
    """It went well."""
    return FinishedJob(JobResult(job, "test", JobState.FINISHED, 1.0), partitions(job), GRAPH)


def partitions(job: str) -> tuple[ShuffleDescriptor, ...]:
    """Its result."""
    identity = PartitionId(DatasetId(job, 0, is_result=True), 0, 1)
    return (ShuffleDescriptor(identity, "local", PartitionKind.BLOCKING_PERSISTENT),)


def question(job: str, stage: int = 1, leased: str = "") -> ReadResult:
    """A task is going to read the partition of this job."""
    return ReadResult("r1", 0, partitions(job)[0].partition, stage, "", leased)


def begun(core: ResultCore, answer: object, job: str) -> int:
    """A run that begins and has this job."""
    assert isinstance(answer, Begin)
    core.runs(answer.run, submission(job))
    return answer.run


def ends(core: ResultCore, run: int, job: str) -> frozenset[str]:
    """Its job goes well: what is released."""
    released = core.finished(submission(job), finished(job))
    core.made(run, partitions(job))
    return released


def test_all_who_open_it_share_a_run() -> None:
    """Until it fails: whoever comes next begins another one."""
    core = ResultCore()
    run = begun(core, core.open(""), "j1")
    assert core.open("") == Join(run)
    core.failed(run)
    assert core.open("") == Begin(run + 1, None)


def test_a_former_run_only_says_what_the_next_one_begins_with() -> None:
    """It was given up while it ran: when it ends well what was given up is released, and it is not the result."""
    core = ResultCore()
    ends(core, begun(core, core.open(""), "j1"), "j1")
    assert core.forget("j1")
    former = begun(core, core.read(question("j1")), "j2")
    assert core.forget("j2")
    run = begun(core, core.read(question("j1")), "j3")
    assert ends(core, former, "j2") == {"j1", "j2"}
    assert isinstance(core.state, Making)
    assert ends(core, run, "j3") == frozenset()
    assert core.jobs == {"j3"}
    core.failed(former)
    assert isinstance(core.state, Made)


def test_a_reader_works_for_the_run_once() -> None:
    """It is told of the job when that has a plan, and waits when it has come back from it."""
    core = ResultCore()
    ends(core, begun(core, core.open(""), "j1"), "j1")
    core.forget("j1")
    run = begun(core, core.read(question("j1")), "j2")
    assert not core.has_answer(run, question("j1"))
    assert core.waited(run, question("j1"), None) == ReadAnswer(ask_again=True)
    core.planned(run, plan("j2"))
    assert core.waited(run, question("j1"), None) == ReadAnswer(job="j2", plan=b"a plan")
    assert not core.has_answer(run, question("j1", leased="j2"))
    ends(core, run, "j2")
    assert core.waited(run, question("j1", leased="j2"), None) == ReadAnswer(partitions("j2")[0])
    assert core.is_opened("j2")
    with pytest.raises(PartitionLostError, match="could not be recomputed: boom"):
        core.waited(run, question("j1"), JobError("boom"))


def test_a_failure_is_told_to_the_action_that_was_planned() -> None:
    """As a new error each time; the next action runs the job."""
    core = ResultCore()
    run = begun(core, core.open(""), "j1")
    core.failed(run)
    error = JobError("boom")
    core.was_told(error, "")
    for _ in range(2):
        told = core.open("action 1")
        assert isinstance(told, JobError)
        assert told is not error
    assert isinstance(core.open("action 2"), Begin)


def test_what_others_made_is_not_its_own() -> None:
    """A build found partitions: nothing of them is released where the result is dropped."""
    core = ResultCore()
    answer = core.open("")
    assert isinstance(answer, Begin)
    core.runs(answer.run, MadeResult(frozenset({"j0", "j1"}), ()))
    core.made(answer.run, ())
    assert core.jobs == {"j0", "j1"}
    assert core.drop() == frozenset()


def test_what_was_forgotten_while_a_build_looked_is_not_there() -> None:
    """Of all builds under way at that time, and of no later one."""
    builds = Builds()
    first, made = builds.begin(), MadeResult(frozenset({"j1"}), ())
    builds.forget("j1")
    second = builds.begin()
    assert not builds.end(first, made)
    assert builds.end(second, made)
    assert builds.end(builds.begin(), submission("j1"))


class ResultMachine(RuleBasedStateMachine):
    """Any number of runs, given up in any order, and whoever opens, reads and loses the result meanwhile."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.core = ResultCore()
        self.under_way: set[int] = set()
        self.released: list[str] = []
        self.lost: set[str] = set()
        self.has_failed = False

    def _begun(self, answer: object, before: object) -> object:
        if not isinstance(answer, Begin):
            return multiple()
        assert isinstance(before, Unmade)
        assert answer.run not in self.under_way
        self.under_way.add(answer.run)
        if answer.recipe is not None:
            self.core.planned(answer.run, plan(f"j{answer.run}"))
        self.core.runs(answer.run, submission(f"j{answer.run}"))
        return answer.run

    @rule(target=runs, action=st.sampled_from(["", "a", "b"]))
    def open(self, action: str) -> object:
        """Somebody opens it."""
        before = self.core.state
        answer = self.core.open(action)
        if isinstance(answer, PenstockError):
            assert self.has_failed
            assert not isinstance(before, Made)
        return self._begun(answer, before)

    @rule(target=runs, number=st.integers(1, 9))
    def read(self, number: int) -> object:
        """Somebody reads what he knows of, waits for the run that makes it, or knows best."""
        before = self.core.state
        return self._begun(self.core.read(question(f"j{number}")), before)

    @rule(run=runs, is_well=st.booleans(), action=st.sampled_from(["", "a", "b"]))
    def end(self, run: int, is_well: bool, action: str) -> None:
        """A run ends, of which some have waited."""
        if run in self.under_way:
            self.under_way.discard(run)
            if is_well:
                self.released += ends(self.core, run, f"j{run}")
                self.core.got(run)
            else:
                self.core.failed(run)
                self.core.was_told(JobError("boom"), action)
                self.has_failed = True

    @rule(run=runs)
    def lose(self, run: int) -> None:
        """The partitions of a run's job are gone, or going to be."""
        if self.core.forget(f"j{run}"):
            self.lost.add(f"j{run}")

    @invariant()
    def one_run_at_a_time(self) -> None:
        """The run of the state is under way, or over; others have been given up."""
        state = self.core.state
        if isinstance(state, Making):
            assert state.run in self.under_way
        if isinstance(state, Made):
            assert state.run not in self.under_way
            assert state.jobs == {f"j{state.run}"}

    @invariant()
    def what_is_read_is_not_released(self) -> None:
        """Each job is given up once, and only where it was lost."""
        assert len(set(self.released)) == len(self.released)
        assert set(self.released) <= self.lost
        assert not self.core.jobs & set(self.released)


ResultMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
TestResultMachine = ResultMachine.TestCase
