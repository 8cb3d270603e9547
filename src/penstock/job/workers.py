# SPDX-License-Identifier: Apache-2.0
"""The workers of one job: Spark tasks that ask for one subtask after the other. Pure.

Rules:

- A worker is launched, comes (registers), is idle, works on an attempt, reports, and asks again. It holds a slot from
  its launch to its end.
- A second Spark attempt of a worker that is still there (speculation, an executor that was given up too early) is
  parked: it gets no answer until the first one has ended, and takes its place then. So two never run as one, and
  Spark, which ends the slower of two attempts, never ends the one that works.
- An attempt that was told to stop while the job goes on is drained: its worker comes back when it has stopped.
- A lent worker is a read task that waits for what the job makes: it was never launched, and its slot is not the
  job's.

Where a method gives calls, those are questions to answer with "nothing more to do".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.job.events import LENT, TaskRegistered
from penstock.shuffle import AttemptId


@dataclass(slots=True)
class Worker:
    """One worker. Without an `identity` it has not come yet."""

    number: int
    part: int
    round: int = 0
    """How many restarts the job had seen when it was launched."""
    identity: AttemptId | None = None
    environment: str = ""
    address: str = ""
    call: int | None = None
    """Its question for work, while it is idle."""
    attempt: AttemptId | None = None
    """What it works on."""
    draining: bool = False
    parked: list[TaskRegistered] = field(default_factory=list)

    @property
    def is_lent(self) -> bool:
        """Whether no Spark job of the job started it."""
        return self.part == LENT

    @property
    def calls(self) -> list[int]:
        """The open questions of it and of its parked attempts."""
        return ([] if self.call is None else [self.call]) + [event.call for event in self.parked]

    def take(self, event: TaskRegistered) -> None:
        """It is this Spark attempt, and asks."""
        self.identity, self.call = event.attempt, event.call
        self.environment, self.address = event.environment, event.address


class Workers:
    """All workers of one job, by number. What is asked at every event is kept, not counted."""

    def __init__(self) -> None:
        self._by_number: dict[int, Worker] = {}
        self._by_attempt: dict[AttemptId, Worker] = {}
        self._idle: dict[int, Worker] = {}
        self._coming: dict[int, Worker] = {}
        self._missing: dict[int, Worker] = {}
        self._draining: dict[int, Worker] = {}
        self._lent: dict[int, Worker] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def idle(self) -> list[Worker]:
        """Those that ask for work, in order of their questions."""
        return list(self._idle.values())

    @property
    def coming(self) -> int:
        """How many will ask for work soon: not there yet, between two questions, or told to stop."""
        return len(self._coming)

    @property
    def missing(self) -> int:
        """How many have never come."""
        return len(self._missing)

    @property
    def draining(self) -> int:
        """How many were told to stop and have not."""
        return len(self._draining)

    @property
    def lent(self) -> int:
        """How many are lent."""
        return len(self._lent)

    def launch(self, part: int, numbers: Iterable[int], round_: int = 0) -> None:
        """Workers were asked for."""
        for number in numbers:
            self._file(Worker(number, part, round_))

    def lend(self, event: TaskRegistered) -> None:
        """Somebody lends a slot: a worker of a number that is not known yet, which asks for work."""
        worker = Worker(event.attempt.subtask, LENT)
        worker.take(event)
        self._file(worker)

    def find(self, number: int) -> Worker | None:
        """The worker of this number, if it has a slot."""
        return self._by_number.get(number)

    def of_part(self, part: int) -> list[Worker]:
        """The workers of a Spark job that have not ended."""
        return [worker for worker in self._by_number.values() if worker.part == part]

    def register(self, event: TaskRegistered) -> list[int]:
        """A known worker asks for work, or waits behind another attempt of it; the calls that this one replaces."""
        worker = self._by_number[event.attempt.subtask]
        if worker.identity is not None and worker.identity != event.attempt:
            worker.parked.append(event)
            return []
        replaced = [] if worker.call is None else [worker.call]
        worker.take(event)
        self._file(worker)
        return replaced

    def assign(self, worker: Worker, attempt: AttemptId) -> None:
        """The worker works on an attempt from now on; its question is answered by whoever calls this."""
        worker.attempt, worker.call = attempt, None
        self._by_attempt[attempt] = worker
        self._file(worker)

    def take_back(self, attempt: AttemptId, call: int) -> None:
        """The attempt was never answered: its worker is idle again."""
        worker = self._by_attempt.pop(attempt, None)
        if worker is not None:
            worker.attempt, worker.call = None, call
            self._file(worker)

    def drain(self, attempt: AttemptId) -> None:
        """The attempt was told to stop."""
        worker = self._by_attempt.get(attempt)
        if worker is not None:
            worker.draining = True
            self._file(worker)

    def free(self, attempt: AttemptId) -> None:
        """The attempt has reported its end: its worker, where it is one's, will ask again."""
        worker = self._by_attempt.pop(attempt, None)
        if worker is not None:
            worker.attempt, worker.draining = None, False
            self._file(worker)

    def release(self, worker: Worker) -> list[int]:
        """The worker may end, and its parked attempts: the calls."""
        self._forget(worker)
        return worker.calls

    def drop_parked(self) -> list[int]:
        """No parked attempt will be needed: the calls."""
        calls = []
        for worker in self._by_number.values():
            calls += [event.call for event in worker.parked]
            worker.parked = []
        return calls

    def lose(self, identity: AttemptId) -> Worker | None:
        """A worker's process is gone, named by its own identity or the attempt it works on.

        The worker as it was; a parked attempt has its place now.
        """
        worker = self._by_attempt.get(identity) or self._by_number.get(identity.subtask)
        if worker is None:
            return None
        if identity not in (worker.identity, worker.attempt):
            worker.parked = [event for event in worker.parked if event.attempt != identity]
            return None
        self._forget(worker)
        self._inherit(worker)
        return worker

    def lose_environment(self, environment: str) -> list[int]:
        """The workers of an environment are gone: the calls, of which nobody hears the answers."""
        calls = []
        for worker in list(self._by_number.values()):
            calls += [event.call for event in worker.parked if event.environment == environment]
            worker.parked = [event for event in worker.parked if event.environment != environment]
            if worker.environment == environment:
                calls += [] if worker.call is None else [worker.call]
                self._forget(worker)
                self._inherit(worker)
        return calls

    def lose_part(self, part: int) -> list[Worker]:
        """A Spark job is over, and with it its workers."""
        gone = self.of_part(part)
        for worker in gone:
            self._forget(worker)
        return gone

    def _inherit(self, worker: Worker) -> None:
        """The first of the parked attempts takes the place of a worker that is gone."""
        if worker.parked:
            first, *others = worker.parked
            heir = Worker(worker.number, worker.part, worker.round, parked=others)
            heir.take(first)
            self._file(heir)

    def _file(self, worker: Worker) -> None:
        """Enter a worker where it belongs now."""
        number = worker.number
        self._by_number[number] = worker
        is_coming = worker.call is None and (worker.attempt is None or worker.draining)
        groups = (
            (self._idle, worker.call is not None),
            (self._coming, is_coming),
            (self._missing, worker.identity is None),
            (self._draining, worker.draining),
            (self._lent, worker.is_lent),
        )
        for group, belongs in groups:
            if belongs:
                group[number] = worker
            else:
                group.pop(number, None)

    def _forget(self, worker: Worker) -> None:
        groups = (self._by_number, self._idle, self._coming, self._missing, self._draining, self._lent)
        for group in groups:
            group.pop(worker.number, None)
        if worker.attempt is not None:
            self._by_attempt.pop(worker.attempt, None)
