# SPDX-License-Identifier: Apache-2.0
"""The workers of one job: Spark tasks that ask for one subtask after the other.

Rules:

- A worker is launched, comes (registers), is idle, works on an attempt, reports, and asks again. It holds a slot from
  its launch to its end, and is in one state at any time.
- A second Spark attempt of a worker that is still there (speculation, an executor that was given up too early) is
  parked: it gets no answer until the first one has ended, and takes its place then. So two never run as one, and
  Spark, which ends the slower of two attempts, never ends the one that works.
- An attempt that was told to stop while the job goes on is drained: its worker comes back when it has stopped.
- A leased worker is a read task that waits for what the job makes: it was never launched, and its slot is not the
  job's.

If a method gives calls, those are questions to answer with "nothing more to do".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from penstock.job.core.events import TaskRegistered
from penstock.job.core.ids import LEASED, SparkJobId, TaskId, WorkerId, WorkerNumber
from penstock.lifecycle.table import Lifecycle, Table
from penstock.shuffle import AttemptId


class WorkerState(Enum):
    """The states of a worker."""

    MISSING = "MISSING"
    """Launched, and never came."""
    IDLE = "IDLE"
    """Asks for work."""
    WORKING = "WORKING"
    """Works on an attempt."""
    DRAINING = "DRAINING"
    """Was told to stop, and has not."""
    BETWEEN = "BETWEEN"
    """Has reported, and will ask again."""


class WorkerEvent(Enum):
    """The events of a worker. One that is gone has no state: it is not there any more."""

    ASK = "ask"
    ASSIGN = "assign"
    DRAIN = "drain"
    LET_OFF = "let_off"
    RECALL = "recall"
    """The attempt is taken back before the worker was told of it: its question stands."""


WORKER_TABLE: Final[Table[WorkerState, WorkerEvent]] = {
    (WorkerState.MISSING, WorkerEvent.ASK): WorkerState.IDLE,
    (WorkerState.IDLE, WorkerEvent.ASK): WorkerState.IDLE,
    (WorkerState.IDLE, WorkerEvent.ASSIGN): WorkerState.WORKING,
    (WorkerState.WORKING, WorkerEvent.DRAIN): WorkerState.DRAINING,
    (WorkerState.WORKING, WorkerEvent.LET_OFF): WorkerState.BETWEEN,
    (WorkerState.WORKING, WorkerEvent.RECALL): WorkerState.IDLE,
    (WorkerState.DRAINING, WorkerEvent.DRAIN): WorkerState.DRAINING,
    (WorkerState.DRAINING, WorkerEvent.LET_OFF): WorkerState.BETWEEN,
    (WorkerState.BETWEEN, WorkerEvent.ASK): WorkerState.IDLE,
}

_COMING = (WorkerState.MISSING, WorkerState.DRAINING, WorkerState.BETWEEN)


class Worker(Lifecycle[WorkerState, WorkerEvent]):
    """One worker. It is idle with a question, works on or stops an attempt, or has neither.

    `round` says how many restarts the job had seen when it was launched.
    """

    __slots__ = ("_has", "address", "environment", "identity", "number", "parked", "round", "spark_job")

    def __init__(self, number: WorkerNumber, spark_job: SparkJobId, round_: int = 0) -> None:
        super().__init__(f"worker {number}", WORKER_TABLE, WorkerState.MISSING)
        self.number = number
        self.spark_job = spark_job
        self.round = round_
        self.identity: TaskId | None = None
        self.environment = self.address = ""
        self.parked: list[TaskRegistered] = []
        self._has: int | AttemptId | None = None

    @property
    def call(self) -> int | None:
        """Its question for work, while it is idle."""
        return self._has if isinstance(self._has, int) else None

    @property
    def attempt(self) -> AttemptId | None:
        """The attempt that it works on, or was told to stop."""
        return self._has if isinstance(self._has, AttemptId) else None

    @property
    def is_leased(self) -> bool:
        """True if no Spark job of the job started it."""
        return self.spark_job == LEASED

    @property
    def calls(self) -> list[int]:
        """The open questions of it and of its parked attempts."""
        return ([] if self.call is None else [self.call]) + [event.call for event in self.parked]

    def ask(self, event: TaskRegistered) -> None:
        """It is this Spark attempt, and asks."""
        self.move(WorkerEvent.ASK)
        self._has = event.call
        self.identity, self.environment, self.address = event.task, event.environment, event.address

    def assign(self, attempt: AttemptId) -> None:
        """It works on an attempt from now on."""
        self.move(WorkerEvent.ASSIGN)
        self._has = attempt

    def drain(self) -> None:
        """It was told to stop what it works on."""
        self.move(WorkerEvent.DRAIN)

    def let_off(self, call: int | None) -> None:
        """It will ask again; with a `call` it asks still, for it was never answered."""
        self.move(WorkerEvent.LET_OFF if call is None else WorkerEvent.RECALL)
        self._has = call


class Workers:
    """All workers of one job, by number and, so that nothing has to be counted, by state."""

    def __init__(self) -> None:
        self.leased = 0
        """The number that are leased."""
        self._by_number: dict[WorkerNumber, Worker] = {}
        self._by_attempt: dict[AttemptId, Worker] = {}
        self._in: dict[WorkerState, dict[WorkerNumber, Worker]] = {state: {} for state in WorkerState}

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._by_number.values())

    @property
    def idle(self) -> list[Worker]:
        """Those that ask for work, in order of their questions."""
        return self.in_state(WorkerState.IDLE)

    @property
    def coming(self) -> int:
        """The number that will ask for work soon: not there yet, between two questions, or told to stop."""
        return sum(len(self._in[state]) for state in _COMING)

    @property
    def missing(self) -> int:
        """The number that have never come."""
        return len(self._in[WorkerState.MISSING])

    @property
    def draining(self) -> int:
        """The number that were told to stop and have not."""
        return len(self._in[WorkerState.DRAINING])

    def in_state(self, state: WorkerState) -> list[Worker]:
        """Those in a state, in the order in which they came there."""
        return list(self._in[state].values())

    def find(self, number: WorkerNumber) -> Worker | None:
        """The worker of this number, if it has a slot."""
        return self._by_number.get(number)

    def on(self, attempt: AttemptId) -> Worker | None:
        """The worker on an attempt, or the one that has not stopped yet."""
        return self._by_attempt.get(attempt)

    def of_spark_job(self, spark_job: SparkJobId) -> list[Worker]:
        """The workers of a Spark job that have not ended."""
        return [worker for worker in self if worker.spark_job == spark_job]

    def launch(self, spark_job: SparkJobId, numbers: Iterable[WorkerNumber], round_: int) -> None:
        """Workers were asked for."""
        for number in numbers:
            self._file(Worker(number, spark_job, round_))

    def register(self, number: WorkerNumber, event: TaskRegistered) -> list[int]:
        """A worker asks for work, or waits behind another attempt of it; the calls that this one replaces.

        One of an unknown number leases its slot.
        """
        worker = self._by_number.get(number)
        if worker is None:
            worker = Worker(number, LEASED)
        if worker.identity is not None and worker.identity != event.task:
            # It may ask twice: beside another environment, where the first one died.
            asked_before = [parked for parked in worker.parked if parked.task == event.task]
            worker.parked = [parked for parked in worker.parked if parked.task != event.task] + [event]
            return [parked.call for parked in asked_before]
        replaced = [] if worker.call is None else [worker.call]
        self._unfile(worker)
        worker.ask(event)
        self._file(worker)
        return replaced

    def assign(self, worker: Worker, attempt: AttemptId) -> int:
        """The worker works on an attempt from now on; the question that is to be answered with it."""
        call = worker.call
        if call is None:
            raise ValueError(f"worker {worker.number} is not idle")
        self._unfile(worker)
        worker.assign(attempt)
        self._file(worker)
        return call

    def let_off(self, attempt: AttemptId, call: int | None = None) -> None:
        """Its worker, where it is one's, will ask again; with a `call` it is idle, for it was never answered."""
        worker = self._by_attempt.get(attempt)
        if worker is not None:
            self._unfile(worker)
            worker.let_off(call)
            self._file(worker)

    def drain(self, attempt: AttemptId) -> None:
        """The attempt was told to stop."""
        worker = self._by_attempt.get(attempt)
        if worker is not None:
            self._unfile(worker)
            worker.drain()
            self._file(worker)

    def release(self, worker: Worker) -> list[int]:
        """The worker may end, and its parked attempts: the calls."""
        self._unfile(worker)
        return worker.calls

    def give_up(self, count: int) -> int:
        """Up to so many that were launched last and have not come are waited for no more; how many."""
        gone = self.in_state(WorkerState.MISSING)[::-1][:count]
        for worker in gone:
            self._unfile(worker)
        return len(gone)

    def drop_parked(self) -> list[int]:
        """No parked attempt will be needed: the calls."""
        calls = []
        for worker in self:
            calls += [event.call for event in worker.parked]
            worker.parked = []
        return calls

    def lose(self, task: TaskId) -> tuple[Worker | None, list[int]]:
        """A process is gone, named by its own identity or the attempt it works on; the calls it leaves behind.

        With them the worker as it was, whose place a parked attempt has now; none if the process was a parked one.
        """
        worker = self._by_number.get(task.number) if isinstance(task, WorkerId) else self._by_attempt.get(task)
        if worker is None:
            return None, []
        if task not in (worker.identity, worker.attempt):
            calls = [event.call for event in worker.parked if event.task == task]
            worker.parked = [event for event in worker.parked if event.task != task]
            return None, calls
        self._unfile(worker)
        self._inherit(worker)
        return worker, [] if worker.call is None else [worker.call]

    def lose_environment(self, environment: str) -> list[int]:
        """The workers of an environment are gone: returns their open calls, whose answers are not heard."""
        calls = []
        for worker in list(self):
            calls += [event.call for event in worker.parked if event.environment == environment]
            worker.parked = [event for event in worker.parked if event.environment != environment]
            if worker.environment == environment:
                calls += [] if worker.call is None else [worker.call]
                self._unfile(worker)
                self._inherit(worker)
        return calls

    def lose_spark_job(self, spark_job: SparkJobId) -> list[Worker]:
        """A Spark job is over, and with it its workers."""
        gone = self.of_spark_job(spark_job)
        for worker in gone:
            self._unfile(worker)
        return gone

    def _inherit(self, worker: Worker) -> None:
        """The first of the parked attempts takes the place of a worker that is gone."""
        if worker.parked:
            first, *others = worker.parked
            heir = Worker(worker.number, worker.spark_job, worker.round)
            heir.parked = others
            heir.ask(first)
            self._file(heir)

    def _file(self, worker: Worker) -> None:
        self._by_number[worker.number] = worker
        self._in[worker.state][worker.number] = worker
        if worker.attempt is not None:
            self._by_attempt[worker.attempt] = worker
        self.leased += worker.is_leased

    def _unfile(self, worker: Worker) -> None:
        if self._by_number.pop(worker.number, None) is not None:
            del self._in[worker.state][worker.number]
            self.leased -= worker.is_leased
        if worker.attempt is not None:
            self._by_attempt.pop(worker.attempt, None)
