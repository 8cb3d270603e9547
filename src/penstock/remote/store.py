# SPDX-License-Identifier: Apache-2.0
"""A worker's files: written and read by threads, so that a slow disk holds up only those who need it.

Rules:

- A file has a number, and lies in the directory that the number falls to. Names say nothing of whose rows they hold.
- Each directory has threads of its own (`merged_disk`), and so has the index. A new file lies in a directory that has
  room. A worker has no room at all while the disk of its index hangs: no writer can commit then.
- The directories are one worker's: it holds a lock in each, and each carries its name. The index has what was
  committed there (`worker_index`), and that stays when the worker ends; `worker_folders` says which files go.
- With `fsync` a commit waits until the writer's files are on the disk. Without, they survive the worker, not a loss
  of power: then they are made again, and readers find what is torn by its checksums.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.errors import PartitionReleasedError, StorageError
from penstock.machine.disk_threads import DiskThreads
from penstock.remote.log_history import HeardWords
from penstock.remote.merged import Spot
from penstock.remote.merged_disk import NOWAIT, MergedDisk, WriteJob
from penstock.remote.read_page import ReadPage, WantedPage
from penstock.remote.worker_folders import MERGED, MERGING, found_files, open_worker_folders, sweep
from penstock.remote.worker_index import CommittedWriter

_LOG = logging.getLogger("penstock.remote.worker")
_FINISH_SECONDS = 5.0
_AT_ONCE = 4 << 20
"""Bytes that are read in one turn of the loop: more is for threads, so that others need not wait."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The folders of files, the bytes that stay free on each disk, and whether a commit waits for the disk."""

    directories: tuple[Path, ...]
    reserve: int = 1 << 30
    fsync: bool = False


class MergedFiles:
    """The files of one worker."""

    def __init__(self, options: StoreOptions) -> None:
        self._folders = opened = open_worker_folders(options.directories)
        self._options = options = replace(options, directories=opened.sorted.ours)
        self._elsewhere: dict[int, Path] = {}
        """The directories of files that were there at the start, if that is another one than their number says."""
        self._committed: set[int] = set()
        """The files of which something was committed."""
        self._missing: frozenset[int] = frozenset()
        """The files of the index that lay in no directory at the start."""
        self._loop = asyncio.get_running_loop()
        self._disks = {each: MergedDisk(each, options.reserve, self._path) for each in options.directories}
        self._at_once = _AT_ONCE
        """Bytes that may still be read in this turn of the loop."""
        self.index = opened.index
        """For the start; then a thread of its own has it."""
        self.words = HeardWords(self.index.words())
        """The words of the manager about its log."""
        self._indexing = DiskThreads("remote index", 1)
        self._settling: dict[asyncio.Future[int], tuple[str, str, int]] = {}
        """The commits that are not in the index yet: application, dataset and writer."""
        self._forgetting: dict[asyncio.Task[None], tuple[str, str]] = {}
        """The removals that are under way: of which dataset."""

    @property
    def folder(self) -> Path:
        """The folder that has the index."""
        return self._folders.home

    @property
    def free(self) -> int:
        """Bytes that are free beyond the reserve, on all disks that work; 0 where no writer can commit."""
        return 0 if self._indexing.hangs else sum(disk.room for disk in self._disks.values())

    @property
    def written(self) -> int:
        """The bytes that were written to all disks."""
        return sum(disk.written for disk in self._disks.values())

    def placed(self, path: int) -> int:
        """The number of a new file, this or a following one: of a directory that has room, if there is any."""
        directories = self._options.directories
        fit = (path + step for step in range(len(directories)) if self._disk(path + step).room)
        return next(fit, path)

    def look(self) -> None:
        """See how the disks are, and give up what waits for one that hangs."""
        for disk in self._disks.values():
            disk.look()

    def write(self, job: WriteJob) -> None:
        """Write a block, in its turn."""
        self._disk(job.spot.path).write(job)

    async def read(self, first: Spot, target: memoryview) -> None:
        """Fill this with the bytes of a run of blocks. PartitionReleasedError where the file is gone, OSError.

        A few that the system has in memory are copied at once: that takes less than to wake a thread, and be woken.
        """
        count = self._read_cached(first, target)
        if count == len(target):
            return
        begin = Spot(first.path, first.offset + count, len(target) - count)
        try:
            await self._disk(first.path).read(begin, target[count:])
        except FileNotFoundError as error:
            if first.path in self._missing:
                raise OSError(errno.EIO, f"file {first.path} lies in none of this worker's folders") from error
            raise PartitionReleasedError(f"file {first.path} was removed: what it held was released") from error

    async def settle(self, committed: CommittedWriter) -> int:
        """Wait until the commit is in the index, and, where that is wanted, its files on the disk. StorageError.

        The number of the first of its rows.
        """
        before = [each for each, of in self._forgetting.items() if of == committed[:2]]
        settling = asyncio.ensure_future(self._settled(before, committed))
        self._settling[settling] = committed[:3]
        settling.add_done_callback(self._settling.pop)
        return await settling

    async def page(self, wanted: WantedPage) -> ReadPage:
        """The places of the blocks that a reader wants. StorageError, IncompleteDataError."""
        return await self._indexing.run(self.index.read, wanted)

    async def taken(self, token: str) -> None:
        """The manager has taken the start with this token; what can't be forgotten of those before it stays."""
        try:
            await self._indexing.run(self.index.taken, token)
        except StorageError as error:
            _LOG.warning("%s", error)

    def remove(self, paths: Iterable[int], of: tuple[str, str], writer: int | None = None) -> None:
        """Remove what a writer, or all of a dataset, has in the index, and files, in threads."""
        removing = [disk.writes.run(self._remove, disk, theirs) for disk, theirs in self._by_disk(paths).items()]
        settling = [
            each for each, theirs in self._settling.items() if theirs[:2] == of and writer in (None, theirs[2])
        ]
        forgetting = asyncio.ensure_future(self._forget([*removing, *settling], of, writer))
        self._forgetting[forgetting] = of
        forgetting.add_done_callback(self._forgetting.pop)

    def find(self, paths: Set[int]) -> tuple[int, dict[int, int]]:
        """Find these files, at the start: the first number that none has had, and the bytes of each that is there."""
        found, following = found_files(self._options.directories, paths)
        self._elsewhere = {path: each.folder for path, each in found.items() if each.folder != self._directory(path)}
        self._committed = set(paths)
        self._missing = frozenset(paths - found.keys())
        if self._missing:
            _LOG.error("%d files of the index are in none of the folders: what they hold is lost", len(self._missing))
        return following, {path: each.size for path, each in found.items()}

    async def finish(self) -> None:
        """Wait for what is being committed or removed, but not for a disk that hangs."""
        under_way: list[asyncio.Future[Any]] = [*self._settling, *self._forgetting]
        if under_way:
            await asyncio.wait(under_way, timeout=_FINISH_SECONDS)

    def close(self, *, is_needed: bool = True) -> None:
        """Let the directories go; remove all files, unless they may be needed again."""
        for disk in self._disks.values():
            disk.close()
        self._indexing.close()
        self.index.close()
        for directory in () if is_needed else self._options.directories:
            sweep(directory)
        self._folders.let_go()

    async def _settled(self, before: Sequence[asyncio.Future[None]], committed: CommittedWriter) -> int:
        """Commit, after removals of the same dataset that began `before`: they drop all rows of its name."""
        paths = [merged.path for merged in committed.pushed.files.values()]
        unnamed = [path for path in paths if self._options.fsync or path not in self._committed]
        by_disk = self._by_disk(unnamed)
        await asyncio.gather(*(disk.writes.run(self._keep, disk, theirs) for disk, theirs in by_disk.items()))
        await asyncio.gather(*before, return_exceptions=True)
        return await self._indexing.run(self.index.add, committed, self.words.all)

    async def _forget(self, before: Sequence[asyncio.Future[Any]], of: tuple[str, str], writer: int | None) -> None:
        """Forget in the index what was removed: after the files, as one that no row names would stay for good.

        A removal and a commit of one dataset wait for each other in the order in which they began.
        """
        await asyncio.gather(*before, return_exceptions=True)
        try:
            if writer is not None:
                await self._indexing.run(self.index.drop_writer, *of, writer)
            else:
                await self._indexing.run(self.index.drop, *of)
            while await self._indexing.run(self.index.clean):
                continue  # others take their turn
        except StorageError as error:  # then the row stays, for readers of a file that is gone
            _LOG.warning("%s", error)

    def _read_cached(self, first: Spot, target: memoryview) -> int:
        """Copy what need not be waited for, as far as this turn of the loop allows; its bytes."""
        if not NOWAIT or self._at_once < len(target):
            return 0
        count = self._disk(first.path).read_cached(first, target)
        if count:
            if self._at_once == _AT_ONCE:
                self._loop.call_soon(self._begin_turn)
            self._at_once -= count
        return count

    def _begin_turn(self) -> None:
        self._at_once = _AT_ONCE

    # --- in threads

    def _keep(self, disk: MergedDisk, paths: Sequence[int]) -> None:
        """See that files stay: something in them is committed."""
        for path in paths:
            if path in self._committed:
                continue
            try:
                disk.rename(path, functools.partial(self._committed.add, path))
            except FileNotFoundError:
                continue  # released meanwhile
            except OSError as error:
                self._committed.discard(path)
                raise StorageError(f"{disk.directory} can't be written: {error}") from error
        if self._options.fsync:
            disk.sync(paths)

    def _remove(self, disk: MergedDisk, paths: Sequence[int]) -> None:
        disk.remove(paths)
        self._committed.difference_update(paths)

    # --- anywhere

    def _by_disk(self, paths: Iterable[int]) -> dict[MergedDisk, list[int]]:
        found: dict[MergedDisk, list[int]] = {}
        for path in paths:
            found.setdefault(self._disk(path), []).append(path)
        return found

    def _disk(self, path: int) -> MergedDisk:
        return self._disks[self._directory(path)]

    def _directory(self, path: int) -> Path:
        found = self._elsewhere.get(path) if self._elsewhere else None
        return found or self._options.directories[path % len(self._options.directories)]

    def _path(self, path: int) -> str:
        return f"{self._directory(path)}/{path}{MERGED if path in self._committed else MERGING}"
