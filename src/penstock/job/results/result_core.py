# SPDX-License-Identifier: Apache-2.0
"""One lazy result, as a core: what happens goes in, and out comes what to begin, whom to wait for and what to answer.

Rules:

- It is not made, a run is making it, or it is made. A run has a number; what a former run still says changes
  only what the next one begins with.
- A run that is one more (the result has been made before) has a plan for those who wait, and counts as opened from
  its beginning: readers wait for it.
- The partitions of an earlier run are given up, and released when a run has gone well.
- An action hears of a failure once as the one that was planned, and always where it waited itself.

No clock, thread or event loop: `results` waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.errors import PartitionLostError, PenstockError
from penstock.graph.job_graph import JobGraph
from penstock.graph.reruns import rows_have_places
from penstock.job.core.result import FinishedJob
from penstock.job.launcher import Rerun, Submission
from penstock.job.results.reads import StageReads
from penstock.link.master import ReadAnswer, ReadResult
from penstock.shuffle import ShuffleDescriptor

_PLAN_LIMIT = 8 << 20
"""The bytes of a plan that a control message to a task may carry."""

Partitions = tuple[ShuffleDescriptor, ...]


@dataclass(frozen=True, slots=True)
class MadeResult:
    """Partitions that are there already, and the jobs that made them."""

    jobs: frozenset[str]
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Recipe:
    """The way to make a result once more: the plan of the last run that went well, and what makes a job of it."""

    graph: JobGraph
    again: Callable[[JobGraph], Rerun]


@dataclass(frozen=True, slots=True)
class Unmade:
    """It is not made, and no run is making it."""


@dataclass(frozen=True, slots=True)
class Making:
    """A run is under way, from its build or as one more; its `plan` and its jobs are there when they are."""

    run: int
    recipe: Recipe | None
    plan: Rerun | None = None
    jobs: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Made:
    """The partitions are there. `own` are the jobs that ran for this result alone; `opened`: a reader has them."""

    run: int
    partitions: Partitions
    jobs: frozenset[str]
    own: frozenset[str]
    opened: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """Make it, by the recipe or else by its build. `holds_slot`: who waits for it holds a task slot."""

    run: int
    recipe: Recipe | None
    holds_slot: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """This run makes it, or has made it."""

    run: int


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failure of its job, and the action that was told last; None: no action has been told yet."""

    error: PenstockError
    told: str | None


class ResultCore:
    """One result."""

    def __init__(self) -> None:
        self.state: Unmade | Making | Made = Unmade()
        self.bytes = 0
        """The bytes of the partitions that were made last."""
        self._graph: JobGraph | None = None
        """The plan of the last run that went well."""
        self._recipe: Recipe | None = None
        self._failure: _Failure | None = None
        self._given_up: frozenset[str] = frozenset()
        """Earlier runs, of which something may be left."""
        self._reads = StageReads()
        self._runs = 0

    @property
    def jobs(self) -> frozenset[str]:
        """The jobs that make or have made it."""
        return frozenset() if isinstance(self.state, Unmade) else self.state.jobs

    def is_opened(self, job: str) -> bool:
        """Tell whether a reader has got the partitions that this job made, or waits for those of another run."""
        match self.state:
            case Made():
                return self.state.opened and job in self.state.jobs
            case Making():
                return self.state.recipe is not None and job in self.state.jobs
            case _:
                return False

    # --- who opens it

    def open(self, action: str) -> Begin | Join | PenstockError:
        """A planner opens it, or a task of this action. The error: it is told how planning has failed."""
        failure = self._failure
        if action and failure is not None and failure.told in (None, action) and not isinstance(self.state, Made):
            self._failure = replace(failure, told=action)
            return _copy(failure.error)
        return self._join(holds_slot=bool(action))

    def got(self, run: int) -> None:
        """A reader, a planner or a task, has got the partitions of this run."""
        if isinstance(self.state, Made) and self.state.run == run:
            self.state = replace(self.state, opened=True)

    def was_told(self, error: PenstockError, action: str) -> None:
        """A planner, or a task of this action, was told that its run failed."""
        self._failure = _Failure(_copy(error), action or None)

    def _join(self, *, holds_slot: bool = False) -> Begin | Join:
        if not isinstance(self.state, Unmade):
            return Join(self.state.run)
        self._runs += 1
        self.state = Making(self._runs, self._recipe)
        return Begin(self._runs, self._recipe, holds_slot)

    # --- a run

    def planned(self, run: int, plan: Rerun) -> None:
        """One more run has its plan: those who wait may work for its job."""
        if isinstance(self.state, Making) and self.state.run == run:
            self.state = replace(self.state, plan=plan)

    def runs(self, run: int, made: Submission | MadeResult) -> None:
        """A run has its job, or has found what is made already."""
        if isinstance(self.state, Making) and self.state.run == run:
            own = frozenset((made.job,)) if isinstance(made, Submission) else frozenset[str]()
            jobs = made.jobs if isinstance(made, MadeResult) else own
            self.state = replace(self.state, jobs=jobs, own=own)

    def made(self, run: int, partitions: Partitions) -> None:
        """The partitions of a run are there."""
        state = self.state
        if isinstance(state, Making) and state.run == run:
            self.state = Made(run, partitions, state.jobs, state.own, state.recipe is not None)

    def finished(self, submission: Submission, finished: FinishedJob) -> frozenset[str]:
        """A run's job has gone well: of these jobs nothing is needed any more."""
        graph, again = finished.graph, submission.again
        self._graph = graph
        self._recipe = None if graph is None or again is None else Recipe(graph, again)
        self.bytes = finished.result_bytes
        given_up, self._given_up = self._given_up, frozenset()
        return given_up

    def failed(self, run: int) -> None:
        """A run has failed: the next reader to open it begins a new one."""
        if isinstance(self.state, Making) and self.state.run == run:
            self.state = Unmade()

    # --- what is lost or not needed

    def forget(self, job: str) -> bool:
        """A job's partitions are gone or going to be; whether they are of this result."""
        if job not in self.jobs:
            return False
        if self._recipe is not None:
            self._given_up |= self.jobs
        self.state = Unmade()
        return True

    def drop(self) -> frozenset[str]:
        """It is not read any more, and no run is under way: what its own jobs made is to be released."""
        return self._given_up | (frozenset() if isinstance(self.state, Unmade) else self.state.own)

    # --- who reads it

    def loses(self, request: ReadResult) -> bool:
        """A reader could not read its partition; whether the JobMaster is to hear of that."""
        self._reads.undo(request)
        return request.job in self.jobs

    def read(self, request: ReadResult) -> ReadAnswer | Begin | Join:
        """A task is going to read: the answer, or the run to wait for."""
        if isinstance(self.state, Made) and request.job in self.state.jobs:
            self._reads.note(request, request.job)
            return ReadAnswer()
        return ReadAnswer() if self._recipe is None else self._join()

    def has_answer(self, run: int, request: ReadResult) -> bool:
        """Tell whether there is more to say to a reader than that it is to ask again."""
        state = self.state
        return not isinstance(state, Making) or state.run != run or _is_told(state, request)

    def waited(self, run: int, request: ReadResult, error: BaseException | None) -> ReadAnswer:
        """The next step of a reader that waited for this run, which may have ended with an error.

        PartitionLostError where there is no way.
        """
        if error is not None:
            raise PartitionLostError(f"partition {request.partition} is lost, and could not be recomputed: {error}")
        state = self.state
        if isinstance(state, Unmade) or state.run != run:
            return ReadAnswer(ask_again=True)  # lost once more
        if isinstance(state, Made):
            return self._given(state, request)
        return _leasing(state.plan, request) if _is_told(state, request) else ReadAnswer(ask_again=True)

    def _given(self, made: Made, request: ReadResult) -> ReadAnswer:
        """The new partition, if the task's stage may read it."""
        (job,) = made.jobs
        are_alike = self._graph is not None and rows_have_places(self._graph)
        if self._reads.has_read_another(request, job) and not are_alike:
            raise PartitionLostError(
                f"partition {request.partition} is lost. It was recomputed, but its pipeline deals rows out by the"
                " order in which they come, and other tasks of this Spark stage have read of the earlier run: run the"
                " action again, which reads the new one"
            )
        self._reads.note(request, job)
        self.got(made.run)
        return ReadAnswer(made.partitions[request.index])


class Builds:
    """The builds under way, and the jobs that were forgotten meanwhile: what a build found of those is gone."""

    def __init__(self) -> None:
        self._forgotten: dict[int, set[str]] = {}
        self._number = 0

    def begin(self) -> int:
        """A build begins: its number."""
        self._number += 1
        self._forgotten[self._number] = set()
        return self._number

    def forget(self, job: str) -> None:
        """A job's partitions are gone."""
        for forgotten in self._forgotten.values():
            forgotten.add(job)

    def end(self, number: int, made: Submission | MadeResult | None) -> bool:
        """A build has ended, with this or an error; whether what it found is still there."""
        forgotten = self._forgotten.pop(number)
        return not (isinstance(made, MadeResult) and made.jobs & forgotten)


def _copy(error: PenstockError) -> PenstockError:
    """The error without the frames of those who waited."""
    return type(error)(str(error))


def _is_told(making: Making, request: ReadResult) -> bool:
    """Tell whether there is a job that this reader can work for, and has not."""
    return making.plan is not None and making.plan.submission.job != request.leased


def _leasing(plan: Rerun | None, request: ReadResult) -> ReadAnswer:
    if plan is None:
        return ReadAnswer(ask_again=True)
    if len(plan.plan) > _PLAN_LIMIT:
        raise PartitionLostError(
            f"partition {request.partition} is lost and is being recomputed, but the plan of its pipeline has"
            f" {len(plan.plan) >> 20} MB, too much to let waiting tasks work for it: run the action again"
        )
    return ReadAnswer(job=plan.submission.job, plan=plan.plan)
