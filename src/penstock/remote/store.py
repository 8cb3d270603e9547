# SPDX-License-Identifier: Apache-2.0
"""A worker's files: written and read by threads, so that a slow disk holds up nobody else.

Rules:

- A file has a number, and lies in the directory that the number falls to. Names say nothing of whose rows they hold.
- Blocks that wait are written in one turn. The worker hears in its loop what became of them.
- A directory with less than `reserve` bytes free takes nothing more; so does one whose disk fails. It is looked at
  before each turn.
- The directories are one worker's: it holds a lock in each, and each carries its name. The index has what was
  committed there (`worker_index`), and that stays when the worker ends; `worker_folders` says which files go.
- With `fsync` a commit waits until the writer's files are on the disk. Without, they survive the worker, not a loss
  of power: then they are made again, and readers find what is torn by its checksums.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from penstock.errors import PartitionReleasedError, StorageError
from penstock.machine.disk_work import DISKS
from penstock.remote.merged import Spot
from penstock.remote.worker_folders import MERGED, MERGING, found_files, open_worker_folders, sweep
from penstock.remote.worker_index import CommittedWriter

_LOG = logging.getLogger("penstock.remote.worker")
_OPEN_FILES = 256
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
"""The flag of a read that does not wait; 0 where Python was built without it."""
_AT_ONCE = 4 << 20
"""Bytes that are read in one turn of the loop: more is for threads, so that nobody else is kept waiting."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The folders of files, the bytes that stay free on each disk, and whether a commit waits for the disk."""

    directories: tuple[Path, ...]
    reserve: int = 1 << 30
    fsync: bool = False


@dataclass(frozen=True, slots=True)
class WriteJob:
    """A block to be written, and what to do then: with None, or with the error."""

    spot: Spot
    data: memoryview
    done: Callable[[OSError | StorageError | None], None]


class MergedFiles:
    """The files of one worker."""

    def __init__(self, options: StoreOptions) -> None:
        self._folders = opened = open_worker_folders(options.directories)
        self._options = options = replace(options, directories=opened.sorted.ours)
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, "remote-write")
        self._reader = ThreadPoolExecutor(2, "remote-read")
        self._waiting: list[WriteJob] = []
        self._is_writing = False
        self._files: OrderedDict[int, int] = OrderedDict()
        self._guard = Lock()
        self._at_once = _AT_ONCE
        """Bytes that may still be read in this turn of the loop."""
        self._broken: dict[Path, str] = {}
        self.written = 0
        """Bytes."""
        self.index = opened.index
        """For the start; then the thread that writes has it."""
        self._elsewhere: dict[int, Path] = {}
        """The directories of files that were there at the start, if that is another one than their number says."""
        self._committed: set[int] = set()
        """The files of which something was committed."""
        self._missing: frozenset[int] = frozenset()
        """Those of the index that lay in no directory at the start."""

    @property
    def folder(self) -> Path:
        """The folder that has the index."""
        return self._folders.home

    @property
    def free(self) -> int:
        """Bytes that are free beyond the reserve, on all disks that work."""
        return sum(max(0, self._free(each)) for each in self._options.directories if each not in self._broken)

    def write(self, job: WriteJob) -> None:
        """Write a block, in its turn."""
        self._waiting.append(job)
        if not self._is_writing:
            self._is_writing = True
            self._turn()

    async def read(self, spots: Sequence[Spot], target: memoryview) -> None:
        """Fill this with the bytes of neighbouring blocks. PartitionReleasedError where the file is gone, OSError.

        A few that the system has in memory are copied at once: that takes less than to wake a thread, and be woken.
        """
        left = target[self._read_cached(spots[0], target) :]
        if left:
            begin = Spot(spots[0].path, spots[0].offset + len(target) - len(left), len(left))
            await self._loop.run_in_executor(self._reader, self._read, begin, left)

    async def settle(self, paths: Iterable[int], committed: CommittedWriter) -> None:
        """Wait until the commit is in the index, and, where that is wanted, these files on the disk. StorageError."""
        await self._loop.run_in_executor(self._writer, self._settle, list(paths), committed)

    async def taken(self, token: str) -> None:
        """The manager has taken the start with this token; what can't be forgotten of those before it stays."""
        try:
            await self._loop.run_in_executor(self._writer, self.index.taken, token)
        except StorageError as error:
            _LOG.warning("%s", error)

    def remove(self, paths: Iterable[int], application: str, dataset: str, writer: int | None = None) -> None:
        """Remove what a writer, or a dataset, has in the index, and files, in a thread."""
        self._writer.submit(self._remove, list(paths), application, dataset, writer)

    def find(self, paths: Set[int]) -> int:
        """Find these files, at the start; the first number that no file has had."""
        found, following = found_files(self._options.directories, paths)
        self._elsewhere = {path: each for path, each in found.items() if each != self._directory(path)}
        self._committed = set(paths)
        self._missing = frozenset(paths - found.keys())
        if self._missing:
            _LOG.error("%d files of the index are in none of the folders: what they hold is lost", len(self._missing))
        return following

    def close(self, *, is_needed: bool = True) -> None:
        """Let the directories go; remove all files, unless they may be needed again."""
        self._writer.shutdown()
        self._reader.shutdown()
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self.index.close()
        for directory in () if is_needed else self._options.directories:
            sweep(directory)
        self._folders.let_go()

    def _turn(self) -> None:
        jobs, self._waiting = self._waiting, []
        self._loop.run_in_executor(self._writer, self._write, jobs).add_done_callback(self._told)

    def _told(self, done: asyncio.Future[list[tuple[WriteJob, OSError | StorageError | None]]]) -> None:
        for job, error in done.result():
            if error is None:
                self.written += len(job.data)
            job.done(error)
        if self._waiting:
            self._turn()
        else:
            self._is_writing = False

    def _read_cached(self, first: Spot, target: memoryview) -> int:
        """Copy what need not be waited for, out of a file that is open; its bytes."""
        if not _NOWAIT or self._at_once < len(target) or not self._guard.acquire(blocking=False):
            return 0  # the lock is taken while a thread opens a file, and a disk may keep it waiting
        try:
            if first.path not in self._files:
                return 0
            began = time.perf_counter()
            count = os.preadv(self._file(first.path, is_there=True), [target], first.offset, _NOWAIT)
        except (OSError, NotImplementedError):  # it is on the disk, or nobody here can tell: the thread sees
            return 0
        finally:
            self._guard.release()
        if self._at_once == _AT_ONCE:
            self._loop.call_soon(self._begin_turn)
        self._at_once -= count
        DISKS.has_read(self._path(first.path), count, time.perf_counter() - began)
        return count

    def _begin_turn(self) -> None:
        self._at_once = _AT_ONCE

    # --- in threads

    def _write(self, jobs: Sequence[WriteJob]) -> list[tuple[WriteJob, OSError | StorageError | None]]:
        found: list[tuple[WriteJob, OSError | StorageError | None]] = []
        room = {each: self._free(each) for each in self._options.directories}
        for job in jobs:
            directory = self._directory(job.spot.path)
            room[directory] -= len(job.data)
            try:
                if directory in self._broken or room[directory] < 0:
                    why = self._broken.get(directory, f"fewer than {self._options.reserve} bytes are free")
                    raise StorageError(f"{directory} takes no more: {why}")
                self._pwrite(job.spot, job.data)
                found.append((job, None))
            except (OSError, StorageError) as error:
                found.append((job, error))
        return found

    def _pwrite(self, spot: Spot, data: memoryview) -> None:
        offset, left = spot.offset, data
        began = time.perf_counter()
        with self._opened(spot.path) as file:
            while left:
                written = os.pwrite(file, left, offset)
                left, offset = left[written:], offset + written
        DISKS.has_written(self._path(spot.path), len(data), time.perf_counter() - began)

    def _read(self, first: Spot, target: memoryview) -> None:
        offset, view = first.offset, target
        began = time.perf_counter()
        try:
            with self._opened(first.path, is_there=True) as file:
                while view:
                    count = os.preadv(file, [view], offset)
                    if not count:
                        view[:] = bytes(len(view))  # the reader finds that bytes are missing, and sees nobody else's
                        break
                    view, offset = view[count:], offset + count
        except FileNotFoundError as error:
            if first.path in self._missing:
                raise OSError(errno.EIO, f"file {first.path} lies in none of this worker's folders") from error
            raise PartitionReleasedError(f"file {first.path} was removed: what it held was released") from error
        DISKS.has_read(self._path(first.path), len(target), time.perf_counter() - began)

    def _settle(self, paths: Sequence[int], committed: CommittedWriter) -> None:
        self._name_committed(paths)
        if self._options.fsync:
            self._sync(paths)
        self.index.add(committed)

    def _name_committed(self, paths: Sequence[int]) -> None:
        for path in paths:
            if path in self._committed:
                continue
            with self._guard:
                began = self._path(path)
                self._committed.add(path)
                try:
                    Path(began).rename(self._path(path))
                except FileNotFoundError:
                    continue  # released meanwhile
                except OSError as error:
                    self._committed.discard(path)
                    raise StorageError(f"{self._directory(path)} can't be written: {error}") from error

    def _sync(self, paths: Sequence[int]) -> None:
        try:
            for path in paths:
                with self._opened(path, is_there=True) as file:
                    os.fsync(file)
        except FileNotFoundError:
            return  # released meanwhile
        except OSError as error:
            raise StorageError(f"{self._directory(paths[0])} can't be written: {error}") from error

    def _remove(self, paths: Sequence[int], application: str, dataset: str, writer: int | None) -> None:
        with self._guard:
            files = [file for path in paths if (file := self._files.pop(path, None)) is not None]
        for file in files:
            os.close(file)
        for path in paths:
            Path(self._path(path)).unlink(missing_ok=True)
            self._committed.discard(path)
        try:
            self.index.drop(
                application, dataset, writer
            )  # after the files: one that no row names would stay for good
        except StorageError as error:  # then the row stays, for readers of a file that is gone
            _LOG.warning("%s", error)

    @contextmanager
    def _opened(self, path: int, *, is_there: bool = False) -> Iterator[int]:
        """A descriptor for a `with` block: a copy, as another thread may close the one that is kept.

        Its number would be that of the next file that is opened, of whatever application.
        """
        with self._guard:
            file = os.dup(self._file(path, is_there=is_there))
        try:
            yield file
        finally:
            os.close(file)

    def _file(self, path: int, *, is_there: bool) -> int:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if is_there else os.O_CREAT)
        file = self._files[path] = os.open(self._path(path), flags, 0o600)
        if len(self._files) > _OPEN_FILES:
            _, oldest = self._files.popitem(last=False)
            os.close(oldest)
        return file

    def _directory(self, path: int) -> Path:
        found = self._elsewhere.get(path) if self._elsewhere else None
        return found or self._options.directories[path % len(self._options.directories)]

    def _path(self, path: int) -> str:
        return f"{self._directory(path)}/{path}{MERGED if path in self._committed else MERGING}"

    def _free(self, directory: Path) -> int:
        try:
            system = os.statvfs(directory)
        except OSError as error:
            self._broken[directory] = str(error)
            return 0
        return system.f_bavail * system.f_frsize - self._options.reserve
