# SPDX-License-Identifier: Apache-2.0
"""The manager's decisions about workers: who comes, what it drops, and what is lost with it. Pure.

Rules:

- A worker says with each beat what it holds, and is told what of that is not needed any more. So nothing has to be
  remembered about releases that a worker has not heard of.
- One that is lost takes with it what is open there and what has rows there, and nothing else.
- A worker that has heard of records which the log lacks shows that it is an old copy (`log_history`). Partitions that
  were not finished by then, and those that the log does not know, are lost: readers and drivers hear so. Workers keep
  their rows of those for `kept_lease`, in which the right log may be put back. For `rejoin` after a start no worker
  is told to drop anything, as another one may show that the log is old.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import SettingError, StaleError
from penstock.remote import messages as ask
from penstock.remote.kept_names import KeptNames
from penstock.remote.log_history import OLD_LOG, LogHistory
from penstock.remote.manager_state import DatasetKey, KnownDataset, KnownPartition, KnownWorker, PartitionKey, Record
from penstock.remote.partition_states import RemoteEvent, RemoteState
from penstock.remote.worker_sights import WorkerSights
from penstock.shuffle import DatasetId, PartitionId


@dataclass(frozen=True, slots=True)
class ManagerLimits:
    """Seconds: of a worker's silence, of a task's word about one, and of a driver's or writer's silence.

    `kept_lease`: a name that is not looked for is kept so long. `rejoin`: so long a worker at whose address nothing
    listens has to come back.
    """

    silence: float = 30.0
    leave_out: float = 180.0
    lease: float = 600.0
    kept_lease: float = 7 * 86400.0
    rejoin: float = 10.0


class WorkersState(Protocol):
    """The part of the manager's state that is about workers, and about what lies with them."""

    workers: dict[str, KnownWorker]
    files: Counter[str]
    partitions: dict[PartitionKey, KnownPartition]
    datasets: dict[DatasetKey, KnownDataset]
    by_dataset: dict[DatasetKey, dict[PartitionKey, None]]
    history: LogHistory


class KnownWorkers:
    """The workers of one manager; `lost` hears by application what is lost, and why."""

    def __init__(
        self,
        state: WorkersState,
        note: Callable[[Record], None],
        lost: Callable[[Mapping[str, list[PartitionId]], str], None],
        names: KeptNames,
        limits: ManagerLimits,
        now: float,
    ) -> None:
        self._state = state
        self._note = note
        self._lost = lost
        self._names = names
        self._limits = limits
        self._began = now
        self._has_memory = bool(state.workers)
        self._missed: dict[str, frozenset[tuple[str, str, int]]] = {}
        """By worker: the writers there of which an old log knows nothing."""
        self.sights = WorkerSights(state.workers, state.files, limits.leave_out, now)

    def check_lineage(self, asked: ask.Enroll) -> None:
        """SettingError for a worker whose folder has gone another way than the one that was here last."""
        known = self._state.workers.get(asked.worker)
        if known is not None and known.incarnation and known.incarnation not in asked.lineage:
            raise SettingError(
                f"the worker at {asked.address} is refused: it comes as {asked.worker}, and a copy of its folder has"
                f" been started since, at {known.address}. Start this one with another --dir, which is empty: then it"
                " has a name of its own"
            )

    def enroll(self, asked: ask.Enroll, now: float) -> None:
        """A worker is there, or again: under a name that it had it still holds what was committed there."""
        self.check_lineage(asked)
        known, incarnation = self._state.workers.get(asked.worker), asked.lineage[-1]
        if known is None or (known.address, known.incarnation) != (asked.address, incarnation):
            self._note(("worker", asked.worker, asked.address, incarnation))
        self.sights.came(asked.worker, now)
        if not self._state.history.is_old and any(self._state.history.lacks(*word) for word in asked.words):
            self._miss_records()

    def beat(self, worker: str, asked: ask.Beat, now: float) -> ask.Orders:
        """A worker lives; what it is to drop. StaleError for one that was given up."""
        if worker not in self._state.workers:
            raise StaleError(f"worker {worker} was given up as lost: what it held is recomputed")
        self.sights.beat(worker, asked, now)
        known_worker = self._state.workers[worker]
        if asked.is_leaving and not known_worker.is_leaving:
            self._note(("leaving", worker))
        if known_worker.is_leaving and not asked.is_leaving:
            self._note(("worker", worker, known_worker.address, known_worker.incarnation))  # it was started again
        drops, forget = self._not_needed(asked)
        if self._state.history.is_old:
            if worker not in self._missed:
                unknown = ((*each[:2], writer) for each in asked.held if each[:2] in forget for writer in each[2])
                theirs = ((*key, writer) for *key, writers in drops for writer in writers)
                self._missed[worker] = frozenset((*unknown, *theirs))  # type: ignore[arg-type]
            missed = self._missed[worker]
            keeps = {key[:2] for key in missed}
            forget = [each for each in forget if each not in keeps]
            left = [(*key, tuple(each for each in gone if (*key, each) not in missed)) for *key, gone in drops]
            drops = [each for each in left if each[2]]  # type: ignore[misc]
        may_leave = asked.is_leaving and not self._needs(worker) and not self._missed.get(worker)
        if self._has_memory and now - self._began < self._limits.rejoin:
            drops, forget = [], []
        return ask.Orders(tuple(drops), tuple(forget), may_leave)

    def lose(self, worker: str, cause: str) -> None:
        """A worker is gone, with what it holds."""
        known = self._state.workers.get(worker)
        if known is None:
            return
        self.sights.lose(worker)
        lost: dict[str, list[PartitionId]] = defaultdict(list)
        there = [key for key, each in self._state.partitions.items() if self._is_on(key, each, worker)]
        cause = f"worker {worker} at {known.address} is lost: {cause}"
        for key in there:
            lost[key[0]].append(_partition(key))
            if not self._names.holds(key):
                self._note(("ended", *key, RemoteEvent.LOSE.value, cause))
        self._lost(lost, cause)
        self._note(("gone", worker))

    def pass_time(self, now: float) -> list[str]:
        """Give up workers that have been silent for too long; returns them."""
        silent = self.sights.silent(now - self._limits.silence)
        for worker in silent:
            self.lose(worker, f"it was silent for {self._limits.silence:g} s")
        if self._state.history.is_old and now - self._began > self._limits.kept_lease:
            self._note(("current",))
            self._missed.clear()
        return silent

    def _miss_records(self) -> None:
        """The log is an old copy: what it does not know to be complete may have been, and is lost."""
        self._note(("old",))
        lost: dict[str, list[PartitionId]] = defaultdict(list)
        for key, known in list(self._state.partitions.items()):
            if known.state in (RemoteState.NAMED, RemoteState.OPEN):
                self._note(("ended", *key, RemoteEvent.LOSE.value, OLD_LOG))
                lost[key[0]].append(_partition(key))
        self._lost(lost, OLD_LOG)

    def _not_needed(self, asked: ask.Beat) -> tuple[list[tuple[str, str, tuple[int, ...]]], list[tuple[str, str]]]:
        """What a worker holds and need not: writers of datasets, and whole datasets."""
        drops, forget = [], []
        for application, dataset, writers in asked.held:
            known = self._state.by_dataset.get((application, dataset))
            if known is None:
                forget.append((application, dataset))
                continue
            partitions = [self._state.partitions[key] for key in known]
            live = {writer for each in partitions if each.is_held for writer in each.writers}
            if gone := tuple(writer for writer in writers if writer not in live):
                drops.append((application, dataset, gone))
        return drops, forget

    def _is_on(self, key: PartitionKey, partition: KnownPartition, worker: str) -> bool:
        if partition.state is RemoteState.COMPLETE:
            return worker in partition.workers
        return partition.state is RemoteState.OPEN and worker in self._state.datasets[key[:2]].workers

    def _needs(self, worker: str) -> bool:
        return any(self._is_on(key, partition, worker) for key, partition in self._state.partitions.items())


def _partition(key: PartitionKey) -> PartitionId:
    return PartitionId(DatasetId.of(key[1]), key[2], key[3])
