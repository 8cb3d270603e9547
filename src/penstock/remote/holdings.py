# SPDX-License-Identifier: Apache-2.0
"""The belongings of one worker that its connections share: its files, datasets, memory, and counts."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterator

from penstock.errors import StorageError
from penstock.observe.user_work import UserWork
from penstock.remote.block_memory import BlockMemory
from penstock.remote.blocks import LEAST_CREDIT
from penstock.remote.merged import MergedDataset, Room
from penstock.remote.peers import user_of
from penstock.remote.push_credit import MemoryMarks, PushCredit
from penstock.remote.store import MergedFiles
from penstock.remote.wire import BulkFrame, PeerLogic

_LOG = logging.getLogger("penstock.remote.worker")
_READ_SHARE = 4
"""Of the memory, one part in so many is for readers."""


class ReadBudget:
    """The bytes that are read and not yet sent, of all readers. Pure. None overtakes another."""

    def __init__(self, cap: int) -> None:
        self._cap = max(cap, LEAST_CREDIT)
        self.used = 0
        self._line: dict[object, tuple[int, Callable[[], None]]] = {}

    @property
    def waiting(self) -> int:
        """The readers that wait for bytes."""
        return len(self._line)

    def take(self, reader: object, nbytes: int, taken: Callable[[], None]) -> bool:
        """Take so many bytes; False if they are taken later, in turn: then `taken` is called."""
        if self._line or not self._has_room(nbytes):
            self._line[reader] = nbytes, taken
            return False
        self.used += nbytes
        return True

    def give(self, nbytes: int) -> None:
        """Give bytes back."""
        self.used -= nbytes
        self._serve()

    def leave(self, reader: object) -> None:
        """A reader waits no more; idempotent."""
        if self._line.pop(reader, None) is not None:
            self._serve()

    def _serve(self) -> None:
        while self._line:
            reader, (nbytes, taken) = next(iter(self._line.items()))
            if not self._has_room(nbytes):
                return
            del self._line[reader]
            self.used += nbytes
            taken()

    def _has_room(self, nbytes: int) -> bool:
        return not self.used or self.used + nbytes <= self._cap


class WorkerFigures:
    """Counts of a worker since its start: bytes, and the times that memory went above its high mark."""

    def __init__(self) -> None:
        self.pushed = self.read = self.dropped = self.over = 0


class WorkerHoldings:
    """One worker's, with so much memory for rows on their way; quotas of each application and user. Bytes."""

    def __init__(self, store: MergedFiles, memory: int, quota: int = 0, user_quota: int = 0) -> None:
        self.store = store
        self._quotas = quota, user_quota
        self._rooms: dict[str, Room] = {}
        self._users: dict[str, Room] = {}
        self.credit = PushCredit(MemoryMarks.of(memory * (_READ_SHARE - 1) // _READ_SHARE))
        self.reading = ReadBudget(memory // _READ_SHARE)
        self.memory = BlockMemory()
        self.figures = WorkerFigures()
        self.users = UserWork()
        self.datasets: dict[tuple[str, str], MergedDataset] = {}
        self._next_path = 0
        self._pushers: dict[int, PeerLogic] = {}
        self.lineage: tuple[str, ...] = ()
        """The tokens of the folder's starts that the manager may know, this one's last."""

    def dataset(self, application: str, name: str) -> MergedDataset:
        """A dataset, made where it is not there."""
        found = self.datasets.get((application, name))
        if found is None:
            found = self.datasets[application, name] = MergedDataset(name, self._paths(), self._room(application))
        return found

    def _room(self, application: str) -> Room:
        found = self._rooms.get(application)
        if found is None:
            quota, of_user = self._quotas
            user = self._users.setdefault(user_of(application), Room(of_user))
            found = self._rooms[application] = Room(quota, user)
        return found

    def _paths(self) -> Iterator[int]:
        while True:
            self._next_path += 1
            yield self._next_path - 1

    def drop(self, application: str, name: str, writers: tuple[int, ...]) -> None:
        """Nobody needs what these writers have."""
        dataset = self.datasets.get((application, name))
        for writer in writers if dataset is not None else ():
            assert dataset is not None  # noqa: S101 - there are no writers otherwise
            self.store.remove(dataset.discard(writer), application, name, writer)

    def forget(self, application: str, name: str) -> None:
        """Nobody needs a dataset."""
        dataset = self.datasets.pop((application, name), None)
        if dataset is not None:
            self.store.remove(dataset.drop_all(), application, name)
            if not any(of == application for of, _ in self.datasets):
                self._rooms.pop(application, None)
                if not any(user_of(of) == user_of(application) for of in self._rooms):
                    self._users.pop(user_of(application), None)

    def restore(self) -> str:
        """Have what was committed before; the name of this worker, or nothing if it never had one."""
        paths: set[int] = set()
        for found in self.store.index.writers():
            dataset = self.dataset(found.application, found.dataset)
            dataset.restore(found.writer, found.partition, found.sums, found.spots)
            paths.update(spot.path for spots in found.spots.values() for spot in spots)
        self._next_path = max(self.store.keep_only(paths), max(paths, default=-1) + 1)
        return self.store.index.name

    def begin(self) -> None:
        """Draw the token of this start; StorageError where that can't be, and there is none of an earlier one."""
        try:
            self.store.index.begin()
        except StorageError as error:
            _LOG.warning("this start goes by the token of the last one: %s", error)
            if not self.store.index.lineage():
                raise
        self.lineage = self.store.index.lineage()

    def enter(self, number: int, logic: PeerLogic) -> None:
        """A connection is there that may push."""
        self._pushers[number] = logic
        self.credit.enter(number)

    def leave(self, number: int) -> None:
        """It is gone; idempotent."""
        if self._pushers.pop(number, None) is not None:
            self.credit.leave(number)
            self.promise()

    def promise(self) -> None:
        """Promise memory to those who wait for it."""
        was_over = self.credit.is_over
        counts = Counter(int(str(number)) for number, _ in self.credit.promises())
        for number, count in counts.items():
            self._pushers[number].send_bulk(BulkFrame.PROMISE, struct.pack("<I", count))
        self.figures.over += self.credit.is_over and not was_over

    def stored(self, number: int, nbytes: int) -> None:
        """A connection's block is in memory no more."""
        self.credit.stored(number, nbytes)
        self.promise()
