# SPDX-License-Identifier: Apache-2.0
"""The workers of one job: Spark tasks that ask for one subtask after the other. Pure.

Rules:

- A worker is launched, comes (registers), is idle, works on an attempt, reports, and asks again. It holds a slot from
  its launch to its end.
- A second Spark attempt of a worker that is still there (speculation, an executor that was given up too early) is
  parked: it gets no answer until the first one has ended, and takes its place then. So two never run as one, and
  Spark, which ends the slower of two attempts, never ends the one that works.
- An attempt that was told to stop while the job goes on is drained: its worker comes back when it has stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.job.events import TaskRegistered
from penstock.shuffle import AttemptId


@dataclass(slots=True)
class Worker:
    """One worker. Without an `identity` it has not come yet."""

    number: int
    part: int
    identity: AttemptId | None = None
    environment: str = ""
    address: str = ""
    call: int | None = None
    """Its question for work, while it is idle."""
    attempt: AttemptId | None = None
    """What it works on."""
    draining: bool = False
    parked: list[TaskRegistered] = field(default_factory=list)


class Workers:
    """All workers of one job, by number."""

    def __init__(self) -> None:
        self._by_number: dict[int, Worker] = {}
        self._by_attempt: dict[AttemptId, Worker] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def idle(self) -> list[Worker]:
        """Those that ask for work, in order."""
        return [worker for worker in self._by_number.values() if worker.call is not None]

    @property
    def coming(self) -> int:
        """How many will ask for work soon: not there yet, between two questions, or told to stop."""
        return sum(1 for w in self._by_number.values() if w.call is None and (w.attempt is None or w.draining))

    @property
    def missing(self) -> int:
        """How many have never come."""
        return sum(1 for worker in self._by_number.values() if worker.identity is None)

    @property
    def draining(self) -> bool:
        """Whether one was told to stop and has not."""
        return any(worker.draining for worker in self._by_number.values())

    def launch(self, part: int, numbers: tuple[int, ...]) -> None:
        """Workers were asked for."""
        for number in numbers:
            self._by_number[number] = Worker(number, part)

    def register(self, event: TaskRegistered) -> Worker | None:
        """A worker asks for work: itself, or None where it is parked behind another attempt of it, or unknown."""
        worker = self._by_number.get(event.attempt.subtask)
        if worker is None:
            return None
        if worker.identity is not None and worker.identity != event.attempt:
            worker.parked.append(event)
            return None
        self._take(worker, event)
        return worker

    def is_known(self, number: int) -> bool:
        """Whether a worker of this number has a slot."""
        return number in self._by_number

    def assign(self, worker: Worker, attempt: AttemptId) -> None:
        """The worker works on an attempt from now on; its question is answered by whoever calls this."""
        worker.attempt, worker.call = attempt, None
        self._by_attempt[attempt] = worker

    def take_back(self, attempt: AttemptId, call: int) -> None:
        """The attempt was never answered: its worker is idle again."""
        worker = self._by_attempt.pop(attempt, None)
        if worker is not None:
            worker.attempt, worker.call = None, call

    def drain(self, attempt: AttemptId) -> None:
        """The attempt was told to stop."""
        worker = self._by_attempt.get(attempt)
        if worker is not None:
            worker.draining = True

    def free(self, attempt: AttemptId) -> bool:
        """The attempt has reported its end: its worker will ask again. Whether there is one."""
        worker = self._by_attempt.pop(attempt, None)
        if worker is not None:
            worker.attempt, worker.draining = None, False
        return worker is not None

    def release(self, worker: Worker) -> list[int]:
        """The worker may end: the questions to answer so, its parked attempts' included."""
        calls = [] if worker.call is None else [worker.call]
        calls += [event.call for event in worker.parked]
        self._forget(worker)
        return calls

    def lose(self, identity: AttemptId) -> Worker | None:
        """A worker's process is gone, named by its own identity or the attempt it works on.

        The worker as it was; a parked attempt has its place now.
        """
        worker = self._by_attempt.get(identity)
        if worker is None and identity.subtask in self._by_number:
            worker = self._by_number[identity.subtask]
            if worker.identity != identity:
                worker.parked = [event for event in worker.parked if event.attempt != identity]
                return None
        if worker is None:
            return None
        self._forget(worker)
        if worker.parked:
            first, *others = worker.parked
            heir = self._by_number[worker.number] = Worker(worker.number, worker.part, parked=others)
            self._take(heir, first)
        return worker

    def lose_environment(self, environment: str) -> list[int]:
        """The workers of an environment are gone; the questions of theirs that nobody can hear an answer to."""
        calls = []
        for worker in [each for each in self._by_number.values() if each.environment == environment]:
            calls += self.release(worker)
        return calls

    def lose_part(self, part: int) -> list[Worker]:
        """A Spark job is over, and with it its workers."""
        gone = [worker for worker in self._by_number.values() if worker.part == part]
        for worker in gone:
            self._forget(worker)
        return gone

    def _forget(self, worker: Worker) -> None:
        del self._by_number[worker.number]
        if worker.attempt is not None:
            self._by_attempt.pop(worker.attempt, None)

    @staticmethod
    def _take(worker: Worker, event: TaskRegistered) -> None:
        worker.identity, worker.call = event.attempt, event.call
        worker.environment, worker.address = event.environment, event.address
