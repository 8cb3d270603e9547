# SPDX-License-Identifier: Apache-2.0
"""The manager's knowledge, as the sum of its records: the log of these is its memory across restarts. Pure.

A record is a tuple of a word and plain values. `apply` is the only way in which the state changes, so a manager that
reads its log again knows what it knew. `records` gives the fewest records that lead to the same state: a snapshot.

Limits: load, heartbeats and who is left out for a while are not remembered. A record that makes no sense is a
ProtocolError: no manager of this version wrote it.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from penstock.errors import ProtocolError
from penstock.lifecycle.table import Lifecycle
from penstock.remote.log_history import LogHistory
from penstock.remote.partition_states import HELD, RemoteEvent, RemoteState, partition_life
from penstock.shuffle import DatasetId

Record = tuple[object, ...]
PACKED = "zlib"
"""The last word of a record of a kept result; those that were written before there was one are not packed."""
DatasetKey = tuple[str, str]
"""Application and dataset."""
PartitionKey = tuple[str, str, int, int]
"""Application, dataset, index, attempt."""
PARTITION_ENTRIES: Final = 8
"""The entries that a partition counts as: it takes as much memory as the places of so many files."""


def user_of(application: str) -> str:
    """The user of an application."""
    return application.partition("/")[0]


def job_of(dataset: str) -> str:
    """The job of a dataset."""
    return DatasetId.of(dataset).job


@dataclass(slots=True)
class KnownWorker:
    """A worker: its address, the token of its process's start, and whether it takes new files."""

    address: str
    incarnation: str = ""
    is_leaving: bool = False


@dataclass(slots=True)
class KnownDataset:
    """A dataset: the workers of each of its files, the newest last. Files that one worker has share a tuple."""

    places: list[tuple[str, ...]]
    workers: set[str]
    """All workers that have, or had, a file of it."""

    @property
    def current(self) -> list[str]:
        """The worker that each file is written on now."""
        return [places[-1] for places in self.places if places]


@dataclass(slots=True)
class KnownPartition:
    """A partition: its state, the host it is written on, who writes it, and the workers with its rows."""

    life: Lifecycle[RemoteState, RemoteEvent]
    environment: str = ""
    writers: list[int] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    cause: str = ""

    @property
    def state(self) -> RemoteState:
        """The state of its life."""
        return self.life.state

    @property
    def is_held(self) -> bool:
        """True if workers hold something of it."""
        return self.state in HELD


@dataclass(frozen=True, slots=True)
class KeptResult:
    """A result under a name: its identity, who wrote it, its partitions, and its readers' words, packed (`zlib`)."""

    result: str
    application: str
    keys: tuple[PartitionKey, ...]
    description: bytes


class ManagerState:
    """Workers, datasets and partitions of all applications, and results under names."""

    def __init__(self) -> None:
        self.workers: dict[str, KnownWorker] = {}
        self.datasets: dict[DatasetKey, KnownDataset] = {}
        self.files: Counter[str] = Counter()
        """The number of files of all datasets, by the worker that each is written on now."""
        self.entries: Counter[str] = Counter()
        """The files and partitions that are known of each user's applications; a partition counts as so many."""
        self._alone: dict[str, tuple[str, ...]] = {}
        self.partitions: dict[PartitionKey, KnownPartition] = {}
        self.by_dataset: dict[DatasetKey, dict[PartitionKey, None]] = {}
        self._by_job: dict[str, dict[str, dict[DatasetKey, None]]] = {}
        """The datasets of each application, by job."""
        self.over: set[tuple[str, str]] = set()
        """Jobs that are over and have results yet, each with its application."""
        self.kept: dict[tuple[str, str], KeptResult] = {}
        """The kept results, by user and name."""
        self.kept_as: dict[str, tuple[str, str]] = {}
        """User and name, by the identity of the result."""
        self.kept_partitions: set[PartitionKey] = set()
        self.history = LogHistory()

    def apply(self, record: Record) -> None:
        """Take a record in; ProtocolError for one that makes no sense."""
        self.history.records += 1
        word, *values = record
        step: Callable[..., None] | None = _STEPS.get(str(word))
        if step is None:
            raise ProtocolError(f"a record of the manager's state begins with {word!r:.50}")
        try:
            step(self, *values)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ProtocolError(f"a record {word!r} of the manager's state makes no sense: {error!r}") from error

    def restore(self, records: Iterable[Record]) -> None:
        """Know what these records say, and nothing else."""
        for known in (self.workers, self.datasets, self.partitions, self.by_dataset, self._by_job, self.over):
            known.clear()
        for count in (self.files, self.entries):
            count.clear()
        for kept in (self.kept, self.kept_as, self.kept_partitions):
            kept.clear()
        self.history = LogHistory()
        for record in records:
            self.apply(record)

    def datasets_of(self, application: str, job: str | None = None) -> list[DatasetKey]:
        """The datasets of an application, or of one of its jobs."""
        by_job = self._by_job.get(application, {})
        return list(chain(*by_job.values()) if job is None else by_job.get(job, ()))

    def records(self) -> Iterator[Record]:
        """The records of a new log that leads here."""
        for name, worker in self.workers.items():
            yield ("worker", name, worker.address, worker.incarnation)
            if worker.is_leaving:
                yield ("leaving", name)
        for dataset, known in self.datasets.items():
            yield ("dataset", *dataset, known.places)
        for partition, each in self.partitions.items():
            story = (each.state.value, each.environment, each.writers, each.workers, each.cause)
            yield ("partition", *partition, *story)
        for job in self.over:
            yield ("over", *job)
        for user_and_name, kept in self.kept.items():
            partitions = [key[1:] for key in kept.keys]
            yield ("kept", *user_and_name, kept.result, kept.application, partitions, kept.description, PACKED)
        yield self.history.record()

    def _history(self, records: int, starts: list[list[object]], is_old: bool) -> None:
        self.history = LogHistory.of(records, starts, is_old=is_old)

    def _started(self, token: str) -> None:
        self.history.start(token)

    def _old(self) -> None:
        self.history.is_old = True

    def _current(self) -> None:
        self.history.is_old = False

    def _room(self, _: bytes) -> None:
        """Change nothing: this is what a log is tried with."""

    def _worker(self, name: str, address: str, incarnation: str = "") -> None:
        self.workers[name] = KnownWorker(address, incarnation)

    def _leaving(self, name: str) -> None:
        self.workers[name].is_leaving = True

    def _gone(self, name: str) -> None:
        self.workers.pop(name, None)

    def _dataset(self, application: str, dataset: str, places: list[list[str]]) -> None:
        shared = [tuple(each) if len(each) != 1 else self._shared(each[0]) for each in places]
        workers = {worker for each in shared for worker in each}
        known = self.datasets[application, dataset] = KnownDataset(shared, workers)
        self.files.update(known.current)
        self.entries[user_of(application)] += len(shared)
        self.by_dataset.setdefault((application, dataset), {})
        datasets = self._by_job.setdefault(application, {}).setdefault(job_of(dataset), {})
        datasets[application, dataset] = None

    def _grown(self, application: str, dataset: str, workers: list[str]) -> None:
        known = self.datasets[application, dataset]
        known.places += map(self._shared, workers)
        known.workers.update(workers)
        self.files.update(workers)
        self.entries[user_of(application)] += len(workers)

    def _moved(self, application: str, dataset: str, file: int, worker: str) -> None:
        known = self.datasets[application, dataset]
        self.files.subtract(known.places[file][-1:])
        self.files.update([worker])
        known.places[file] = (*known.places[file], worker)
        known.workers.add(worker)

    def _shared(self, worker: str) -> tuple[str, ...]:
        return self._alone.setdefault(worker, (worker,))

    def _partition(self, *values: object) -> None:
        application, dataset, index, attempt, *story = values
        key = (str(application), str(dataset), int(str(index)), int(str(attempt)))
        known = KnownPartition(partition_life(f"{dataset}.{index}#{attempt}"))
        if story:
            state, known.environment, writers, workers, known.cause = story  # type: ignore[assignment]
            known.life.state = RemoteState(str(state))
            known.writers, known.workers = list(writers), list(workers)  # type: ignore[call-overload]
        self.entries[user_of(key[0])] += 0 if key in self.partitions else PARTITION_ENTRIES
        self.partitions[key] = known
        self.by_dataset.setdefault(key[:2], {})[key] = None

    def _begun(self, *values: object) -> None:
        *key, environment, writer = values
        known = self.partitions[tuple(key)]  # type: ignore[index]
        known.life.move(RemoteEvent.BEGIN)
        known.environment = str(environment)
        known.writers.append(int(str(writer)))

    def _left(self, *values: object) -> None:
        *key, writer = values
        self.partitions[tuple(key)].writers.remove(int(str(writer)))  # type: ignore[index]

    def _finished(self, *values: object) -> None:
        *key, writer, workers = values
        known = self.partitions[tuple(key)]  # type: ignore[index]
        known.life.move(RemoteEvent.FINISH)
        known.writers, known.workers = [int(str(writer))], list(workers)  # type: ignore[call-overload]

    def _ended(self, *values: object) -> None:
        *key, event, cause = values
        known = self.partitions[tuple(key)]  # type: ignore[index]
        known.life.move(RemoteEvent(str(event)))
        known.cause = str(cause)

    def _over(self, application: str, job: str) -> None:
        self.over.add((application, job))

    def _forgotten(self, application: str, dataset: str) -> None:
        keys = self.by_dataset.pop((application, dataset), {})
        for key in keys:
            self.partitions.pop(key, None)
        known = self.datasets.pop((application, dataset), None)
        user, job = user_of(application), job_of(dataset)
        self.entries[user] -= len(keys) * PARTITION_ENTRIES
        if known is not None:
            self.files.subtract(known.current)
            self.entries[user] -= len(known.places)
            by_job = self._by_job[application]
            del by_job[job][application, dataset]
            if not by_job[job]:
                del by_job[job]
            if not by_job:
                del self._by_job[application]
        if not self.entries[user]:
            del self.entries[user]

    def _closed(self, application: str, job: str) -> None:
        self.over.discard((application, job))

    def _keep(self, *values: object) -> None:
        user, name, result, application, partitions, description, *form = values
        keys = tuple((str(application), *each) for each in partitions)  # type: ignore[attr-defined]
        packed = bytes(description) if form else zlib.compress(bytes(description))  # type: ignore[call-overload]
        self._unkept(str(user), str(name))
        self.kept[str(user), str(name)] = KeptResult(str(result), str(application), keys, packed)
        self.kept_as[str(result)] = str(user), str(name)
        self.kept_partitions.update(keys)

    def _unkept(self, user: str, name: str) -> None:
        former = self.kept.pop((user, name), None)
        if former is not None:
            self.kept_as.pop(former.result, None)
            self.kept_partitions.difference_update(former.keys)


_STEPS: dict[str, Callable[..., None]] = {
    "room": ManagerState._room,  # noqa: SLF001
    "history": ManagerState._history,  # noqa: SLF001
    "started": ManagerState._started,  # noqa: SLF001
    "old": ManagerState._old,  # noqa: SLF001
    "current": ManagerState._current,  # noqa: SLF001
    "worker": ManagerState._worker,  # noqa: SLF001 - the table of this class's own steps
    "leaving": ManagerState._leaving,  # noqa: SLF001
    "gone": ManagerState._gone,  # noqa: SLF001
    "dataset": ManagerState._dataset,  # noqa: SLF001
    "grown": ManagerState._grown,  # noqa: SLF001
    "moved": ManagerState._moved,  # noqa: SLF001
    "partition": ManagerState._partition,  # noqa: SLF001
    "begun": ManagerState._begun,  # noqa: SLF001
    "left": ManagerState._left,  # noqa: SLF001
    "finished": ManagerState._finished,  # noqa: SLF001
    "ended": ManagerState._ended,  # noqa: SLF001
    "over": ManagerState._over,  # noqa: SLF001
    "forgotten": ManagerState._forgotten,  # noqa: SLF001
    "closed": ManagerState._closed,  # noqa: SLF001
    "kept": ManagerState._keep,  # noqa: SLF001
    "unkept": ManagerState._unkept,  # noqa: SLF001
}
