# SPDX-License-Identifier: Apache-2.0
"""The manager's decisions about partitions: the places of their files, what became of them, what may go. Pure.

Rules:

- Every change is a record first (`manager_state`); the shell writes `take_records` before it answers.
- Numbers in a question, and what is known of one application, are bounded: no peer can fill the manager. Lists are
  bounded for all questions, where they are read (`wire.MOST_VALUES`).
- Every request may come again, after a connection or the manager itself broke: it is answered as it was the first
  time.
- `known_workers` decides about workers, and `worker_sights` says who gets files.
- An application whose driver is silent for `lease` seconds is over; what is kept under names stays (`kept_names`). A
  writer that is silent for so long is given up, and its partition has failed if it has no other one.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.errors import (
    PartitionError,
    PartitionLostError,
    PartitionNotProducedError,
    PenstockError,
    ProtocolError,
    QuotaError,
    SettingError,
    StaleError,
)
from penstock.remote import messages as ask
from penstock.remote.kept_names import KeptNames
from penstock.remote.known_workers import KnownWorkers, ManagerLimits
from penstock.remote.log_history import OLD_LOG
from penstock.remote.manager_state import (
    PARTITION_ENTRIES,
    DatasetKey,
    KnownPartition,
    ManagerState,
    PartitionKey,
    Record,
    job_of,
    user_of,
)
from penstock.remote.partition_states import RemoteEvent, RemoteState
from penstock.shuffle import DatasetId, PartitionId

_CAUSE_LETTERS = 2_000
_MOST_NAMED = 1_000
_MOST_WRITERS = 64
MOST_ENTRIES: Final = 1 << 20
"""Files of one user's applications, and their partitions, each of which counts as `PARTITION_ENTRIES`."""
_MOST_PLACES: Final = 2 * ask.MOST_FILES
"""Files in the answer to one question."""


class ManagerCore:
    """Answers requests, with `now` in seconds of any clock."""

    def __init__(self, state: ManagerState, limits: ManagerLimits, now: float) -> None:
        self.state = state
        self._limits = limits
        self._records: list[Record] = []
        self.sealed: PenstockError | None = None
        """The reason why nothing may change now: who asks for a change hears it, before there is any."""
        self._drivers = {application: now for application, _ in state.datasets}
        self._writers = {
            (key, writer): now
            for key, known in state.partitions.items()
            for writer in known.writers
            if known.state is RemoteState.OPEN
        }
        self._losses: dict[str, list[tuple[tuple[PartitionId, ...], str]]] = defaultdict(list)
        self.names = KeptNames(state, self._note, self._let_go, limits.kept_lease, now)
        self.workers = KnownWorkers(state, self._note, self._lost, self.names, limits, now)

    def take_records(self) -> list[Record]:
        """The records since the last call."""
        records, self._records = self._records, []
        return records

    def restore(self, records: Iterable[Record]) -> None:
        """Go back to what these records say: what was decided since can't be kept, and no peer was told of it."""
        self._records = []
        self.state.restore(records)
        self.workers.sights.forget_unknown()

    # --- partitions

    def name(self, application: str, asked: ask.NamePartition, now: float) -> None:
        """Room for a partition; NoStorageError where no worker has any."""
        key, dataset = _keys(application, asked.partition)
        self._refuse_too_much(application, asked)
        self._drivers.setdefault(application, now)
        if dataset not in self.state.datasets:
            self._note(("dataset", *dataset, []))
        known = self.state.datasets[dataset]
        lost = [file for file, places in enumerate(known.places) if places[-1] not in self.state.workers]
        self._move(application, dataset, lost, now)
        missing = asked.files - len(known.places)
        if missing > 0:
            self._note(("grown", *dataset, self.workers.sights.placed(application, missing, now)))
        if key not in self.state.partitions:
            self._note(("partition", *key))

    def begin(self, application: str, asked: ask.StartPartition, now: float) -> ask.Located:
        """A writer begins, or says that it is there: where its files are. StaleError for one that was given up."""
        key, dataset = _keys(application, asked.partition)
        known = self._known(key, asked.partition)
        is_finished = known.state is RemoteState.COMPLETE and known.writers == [asked.writer]
        if not is_finished and not known.life.allows(RemoteEvent.BEGIN):
            raise _stale(asked.partition, known)
        if asked.writer not in known.writers:
            if len(known.writers) >= _MOST_WRITERS or len(asked.environment.encode()) > _MOST_NAMED:
                raise StaleError(f"{asked.partition} has {len(known.writers)} writers: there are too many")
            self._note(("begun", *key, asked.environment, asked.writer))
        self._writers[key, asked.writer] = now
        return self._located(dataset)

    def move(self, application: str, asked: ask.MoveFiles, now: float) -> ask.Located:
        """A worker takes no more of some files; NoStorageError where there is no other."""
        key, dataset = _keys(application, asked.partition)
        if self._known(key, asked.partition).state is not RemoteState.OPEN:
            raise _stale(asked.partition, self._known(key, asked.partition))
        self.workers.sights.avoid(application, asked.worker, asked.cause, now)
        places = self.state.datasets[dataset].places
        moved = sorted({file for file in asked.files if 0 <= file < len(places) and places[file][-1] == asked.worker})
        self._move(application, dataset, moved, now)
        return self._located(dataset)

    def finish(self, application: str, asked: ask.FinishPartition) -> None:
        """A writer has finished; StaleError for one that is not the first, or that was given up."""
        key, _ = _keys(application, asked.partition)
        known = self._known(key, asked.partition)
        if known.state is RemoteState.COMPLETE and known.writers == [asked.writer]:
            return
        if known.state is not RemoteState.OPEN or asked.writer not in known.writers:
            raise _stale(asked.partition, known)
        gone = set(asked.workers) - self.state.workers.keys()
        if gone:
            raise PartitionLostError(f"{asked.partition} is lost: worker {', '.join(sorted(gone))} is gone")
        self._note(("finished", *key, asked.writer, sorted(set(asked.workers))))

    def fail(self, application: str, asked: ask.FailPartition) -> None:
        """A writer gives up; one that is none any more changes nothing."""
        key, _ = _keys(application, asked.partition)
        known = self.state.partitions.get(key)
        if known is not None and asked.writer in known.writers and known.life.allows(RemoteEvent.FAIL):
            self._note(("ended", *key, RemoteEvent.FAIL.value, asked.cause[:_CAUSE_LETTERS]))
            self._tidy(application, asked.partition.job)

    def find(self, application: str, asked: ask.FindPartitions, now: float) -> ask.Stories:
        """Tell what became of partitions, and where they lie."""
        stories, located = [], {}
        owner = self.names.owner(application, asked.kept, now) if asked.kept else application
        for partition in asked.partitions:
            key, dataset = _keys(owner, partition)
            known = self.state.partitions.get(key)
            if known is None or (asked.kept and not self.names.holds(key)):
                unknown = RemoteState.RELEASED if asked.kept else RemoteState.NAMED
                is_lost = known is None and self.state.history.is_old
                state, cause = (RemoteState.LOST, OLD_LOG) if is_lost else (unknown, "")
                stories.append(ask.PartitionStory(state.value, cause=cause))
                continue
            writer = known.writers[0] if known.state is RemoteState.COMPLETE else 0
            stories.append(ask.PartitionStory(known.state.value, writer, tuple(known.workers), known.cause))
            if writer and dataset[1] not in located:
                located[dataset[1]] = self._located(dataset, owner if asked.kept else "")
                if sum(len(each.places) for each in located.values()) > _MOST_PLACES:
                    raise ProtocolError(f"the datasets that are asked for have more than {_MOST_PLACES:,} files")
        return ask.Stories(tuple(stories), located)

    def held(self, application: str, asked: ask.ListOfHost) -> ask.WrittenThere:
        """Tell what is held of a host: a page."""
        after = None if asked.after is None else _keys(application, asked.after)[0]
        found = (
            key
            for dataset in self.state.datasets_of(application)
            for key in self.state.by_dataset[dataset]
            if (after is None or key > after)
            and self.state.partitions[key].environment == asked.environment
            and self.state.partitions[key].is_held
            and not self.names.holds(key)
        )
        page = heapq.nsmallest(ask.MOST_ASKED, found)
        return ask.WrittenThere(tuple(PartitionId(DatasetId.of(key[1]), key[2], key[3]) for key in page))

    def release(self, application: str, partitions: Iterable[PartitionId]) -> None:
        """Release these partitions, but for those under a name."""
        jobs = set()
        for partition in partitions:
            key, _ = _keys(application, partition)
            known = self.state.partitions.get(key)
            if known is not None and known.state is not RemoteState.RELEASED and not self.names.holds(key):
                self._note(("ended", *key, RemoteEvent.RELEASE.value, ""))
                jobs.add(partition.job)
        for job in jobs:
            self._tidy(application, job)

    def end_job(self, application: str, job: str) -> None:
        """A job is over; nothing is remembered of one that has nothing here."""
        if self.state.datasets_of(application, job):
            self._note(("over", application, job))
            self._tidy(application, job)

    def end_application(self, application: str) -> None:
        """An application is over: all goes but what is under a name."""
        for dataset in self.state.datasets_of(application):
            keys = list(self.state.by_dataset[dataset])
            if not self.names.holds_any(keys):
                self._note(("forgotten", *dataset))
                continue
            for key in keys:
                if not self.names.holds(key) and self.state.partitions[key].state is not RemoteState.RELEASED:
                    self._note(("ended", *key, RemoteEvent.RELEASE.value, ""))
        for job in [each for each in self.state.over if each[0] == application]:
            self._note(("closed", *job))
        self._drivers.pop(application, None)
        self._losses.pop(application, None)
        self.workers.sights.end(application)

    def losses(self, application: str, last: int, now: float) -> ask.Losses | None:
        """Tell what was lost after number `last`; None where that is all. The driver lives.

        One that has nothing here, and one whose last word came after its end, need not be remembered for that.
        """
        if application in self._drivers:
            self._drivers[application] = now
        return self.losses_since(application, last)

    def losses_since(self, application: str, last: int) -> ask.Losses | None:
        """The same for a driver that has asked before, and may have gone: it is no sign of life."""
        known = self._losses.get(application, [])
        if last >= len(known):
            return ask.Losses(len(known)) if last > len(known) else None
        partitions, cause = known[last]
        return ask.Losses(last + 1, partitions, cause)

    def pass_time(self, now: float) -> list[str]:
        """Give up workers and drivers that have been silent for too long; returns the workers."""
        silent = self.workers.pass_time(now)
        for application, when in list(self._drivers.items()):
            if now - when > self._limits.lease:
                self.end_application(application)
        self._give_up_writers(now)
        self.names.pass_time(now)
        return silent

    # --- inside

    def _lost(self, lost: Mapping[str, list[PartitionId]], cause: str) -> None:
        """Partitions are lost, by application: its driver is to hear."""
        for application, partitions in lost.items():
            if application in self._drivers:
                self._losses[application] += [(piece, cause) for piece in ask.pieces(partitions)]

    def _give_up_writers(self, now: float) -> None:
        """Give up writers that have been silent for too long; forget those that have finished."""
        for (key, writer), heard in list(self._writers.items()):
            known = self.state.partitions.get(key)
            is_writing = known is not None and known.state is RemoteState.OPEN and writer in known.writers
            if is_writing and now - heard <= self._limits.lease:
                continue
            del self._writers[key, writer]
            if not is_writing or known is None:
                continue
            if len(known.writers) > 1:
                self._note(("left", *key, writer))
                continue
            cause = f"nothing was heard of its writer for {self._limits.lease:g} s"
            self._note(("ended", *key, RemoteEvent.FAIL.value, cause))
            self._tidy(key[0], job_of(key[1]))

    def _note(self, record: Record) -> None:
        if self.sealed is not None:
            raise type(self.sealed)(str(self.sealed))
        self.state.apply(record)
        self._records.append(record)

    def _refuse_too_much(self, application: str, asked: ask.NamePartition) -> None:
        if not 0 <= asked.files <= ask.MOST_FILES:
            raise SettingError(
                f"{asked.partition} has {asked.files:,} subpartitions: the remote shuffle service takes up to"
                f" {ask.MOST_FILES:,}. Use fewer (numPartitions)"
            )
        key, dataset = _keys(application, asked.partition)
        known, entries = self.state.datasets.get(dataset), self.state.entries[user_of(application)]
        if known is not None and key in self.state.partitions and asked.files <= len(known.places):
            return
        if entries + asked.files >= MOST_ENTRIES:
            raise QuotaError(
                f"{asked.partition} can't be named: user {user_of(application)} has {entries:,} entries at the"
                f" manager of the remote shuffle service, and {MOST_ENTRIES:,} is the limit; a subpartition is one, a"
                f" partition {PARTITION_ENTRIES}: use fewer (numPartitions), or release what is not needed"
            )

    def _known(self, key: PartitionKey, partition: PartitionId) -> KnownPartition:
        known = self.state.partitions.get(key)
        if known is None and self.state.history.is_old:
            raise PartitionLostError(f"{partition} is lost: {OLD_LOG}")
        if known is None:
            raise PartitionNotProducedError(
                f"{partition} is not known to the manager: its job is over, or the manager has lost its state"
            )
        return known

    def _move(self, application: str, dataset: DatasetKey, files: Iterable[int], now: float) -> None:
        """Give files other workers than each has had."""
        places = self.state.datasets[dataset].places
        together: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for file in files:
            together[places[file]].append(file)
        for had, same in together.items():
            for file, worker in zip(same, self.workers.sights.placed(application, len(same), now, had), strict=True):
                self._note(("moved", *dataset, file, worker))

    def _located(self, dataset: DatasetKey, owner: str = "") -> ask.Located:
        known = self.state.datasets[dataset]
        workers = self.state.workers
        addresses = {name: workers[name].address for name in sorted(known.workers) if name in workers}
        return ask.Located(addresses, tuple(known.places), owner)

    def _let_go(self, application: str, datasets: set[DatasetKey]) -> None:
        """Partitions of these are under a name no more."""
        for dataset in sorted(datasets):
            if application in self._drivers:
                self._tidy(application, job_of(dataset[1]))
            elif not self.names.holds_any(self.state.by_dataset.get(dataset, ())):
                self._note(("forgotten", *dataset))

    def _tidy(self, application: str, job: str) -> None:
        """Forget the datasets of a job that is over, but for those of results that are kept."""
        if (application, job) not in self.state.over:
            return
        kept = 0
        for dataset in self.state.datasets_of(application, job):
            states = {self.state.partitions[key].state for key in self.state.by_dataset[dataset]}
            if RemoteState.COMPLETE in states:
                kept += 1
            else:
                self._note(("forgotten", *dataset))
        if not kept:
            self._note(("closed", application, job))


def _keys(application: str, partition: PartitionId) -> tuple[PartitionKey, DatasetKey]:
    if (named := len(partition.job.encode())) > _MOST_NAMED:
        raise ProtocolError(f"the name of a job has {named:,} bytes: {_MOST_NAMED:,} is the limit")
    dataset = str(partition.dataset)
    return (application, dataset, partition.index, partition.attempt), (application, dataset)


def _stale(partition: PartitionId, known: KnownPartition) -> PartitionError | StaleError:
    if known.state is RemoteState.LOST:
        return PartitionLostError(f"{partition} is lost: {known.cause}")
    why = f" ({known.cause})" if known.cause else ""
    return StaleError(f"{partition} is {known.state.value}{why}: what this writer has is stale")
