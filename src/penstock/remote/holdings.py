# SPDX-License-Identifier: Apache-2.0
"""The belongings of one worker that its connections share: its files, datasets, memory, and counts."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Final

from penstock.errors import PartitionReleasedError, QuotaError, StorageError
from penstock.observe.user_work import UserWork
from penstock.remote.block_memory import BlockMemory
from penstock.remote.blocks import LEAST_CREDIT
from penstock.remote.merged import MergedDataset, Room
from penstock.remote.peers import user_of
from penstock.remote.push_credit import MemoryMarks, PushCredit
from penstock.remote.read_memory import STANDING_SECONDS, ReadMemory
from penstock.remote.store import MergedFiles
from penstock.remote.wire import BulkFrame, PeerLogic

_LOG = logging.getLogger("penstock.remote.worker")
_EIGHTHS = 5, 2, 1
"""Of the memory: for pushes, for readers, and for readers beside those that stand still."""
MOST_ENTERED: Final = 1 << 18
"""Writers of a user that push, and the files with which they come: what a worker has in memory of each."""
_FORGOTTEN_SECONDS = 3.0
_LOOK_SECONDS = STANDING_SECONDS / 4


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
        pushes, readers, beside = (memory * share // 8 for share in _EIGHTHS)
        self.credit = PushCredit(MemoryMarks.of(pushes))
        self.reading = ReadMemory(max(readers, LEAST_CREDIT), max(beside, LEAST_CREDIT))
        self._look: asyncio.TimerHandle | None = None
        self.memory = BlockMemory(memory, lambda: self.credit.used + self.reading.used)
        self.figures = WorkerFigures()
        self.users = UserWork()
        self.datasets: dict[tuple[str, str], MergedDataset] = {}
        self._entered: Counter[str] = Counter()
        self._left: deque[tuple[float, str, int]] = deque()
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

    def known(self, application: str, name: str) -> MergedDataset:
        """A dataset that is there; PartitionReleasedError where it is not."""
        found = self.datasets.get((application, name))
        if found is None:
            raise PartitionReleasedError(f"{name} holds nothing here: it was released, or nobody has pushed it")
        return found

    def entering(self, user: str, entries: int) -> None:
        """A user's writers come with so many names, or go with them; QuotaError where that is too much at a time."""
        if entries > 0 and self._entered[user] + entries > MOST_ENTERED:
            raise QuotaError(
                f"user {user} has {self._entered[user]:,} writers and names of files under way at this worker, and"
                f" {MOST_ENTERED:,} is the limit: run fewer tasks at a time, or use fewer partitions"
            )
        self._entered[user] += entries
        if not self._entered[user]:
            del self._entered[user]

    def leaving(self, user: str, entries: int) -> None:
        """A connection with so many entries has ended: they count until the next beats have had them dropped."""
        self._left.append((time.monotonic(), user, entries))

    def look(self, now: float) -> None:
        """Stop counting entries whose time is over; to be called from time to time."""
        while self._left and now - self._left[0][0] > _FORGOTTEN_SECONDS:
            _, user, entries = self._left.popleft()
            self.entering(user, -entries)

    def _room(self, application: str) -> Room:
        found = self._rooms.get(application)
        if found is None:
            quota, of_user = self._quotas
            user = self._users.setdefault(user_of(application), Room(of_user))
            found = self._rooms[application] = Room(quota, user)
        return found

    def _paths(self) -> Iterator[int]:
        while True:
            path = self.store.placed(self._next_path)
            self._next_path = path + 1
            yield path

    def drop(self, application: str, name: str, writers: tuple[int, ...]) -> None:
        """Discard what these writers have."""
        dataset = self.datasets.get((application, name))
        for writer in writers if dataset is not None else ():
            assert dataset is not None  # noqa: S101 - there are no writers otherwise
            self.store.remove(dataset.discard(writer), (application, name), writer)

    def forget(self, application: str, name: str) -> None:
        """Forget a dataset, and remove its files."""
        dataset = self.datasets.pop((application, name), None)
        if dataset is not None:
            self.store.remove(dataset.drop_all(), (application, name))
            if not any(of == application for of, _ in self.datasets):
                self._rooms.pop(application, None)
                if not any(user_of(of) == user_of(application) for of in self._rooms):
                    self._users.pop(user_of(application), None)

    def restore(self) -> str:
        """Have what was committed before; the name of this worker."""
        paths: set[int] = set()
        for found in self.store.index.known():
            paths |= self.dataset(found.application, found.dataset).restore(found.writers, found.paths)
        following, sizes = self.store.find(paths)
        self._next_path = max(following, max(paths, default=-1) + 1)
        for dataset in self.datasets.values():
            dataset.find(sizes)
        return self.store.index.id

    def begin(self) -> None:
        """Draw the token of this start; StorageError where that can't be, and there is none of an earlier one."""
        try:
            self.store.index.begin()
        except StorageError as error:
            _LOG.warning("this start goes by the token of the last one: %s", error)
            if not self.store.index.lineage():
                raise
        self.lineage = self.store.index.lineage()

    def watch_readers(self) -> None:
        """A reader waits: look who stands still, again and again, until none waits."""
        if self._look is None and self.reading.waiting:
            self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_at_readers)

    def _look_at_readers(self) -> None:
        self._look = None
        try:
            self.reading.look(time.monotonic())
        finally:
            self.watch_readers()

    def enter(self, number: int, logic: PeerLogic, application: str) -> None:
        """A connection of an application is there that may push."""
        self._pushers[number] = logic
        self.credit.enter(number, application, user_of(application))

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
