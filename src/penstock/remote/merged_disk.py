# SPDX-License-Identifier: Apache-2.0
"""One directory of a worker: its threads, its open files, what waits for it, and how it is.

Rules:

- Blocks that wait are written in one turn, by one thread; two others read. The worker hears in its loop what became
  of them.
- A directory with less than `reserve` bytes free takes nothing more; so does one whose disk fails. It is looked at
  before each turn, and with each `look`.
- `look` gives a disk up that hangs: what waits for it fails, and is written elsewhere; reads that wait fail too. The
  block that its thread is in fails as well, and its memory is free when the thread comes back.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from penstock.errors import StorageError
from penstock.machine.disk_threads import HANGS_SECONDS, DiskThreads
from penstock.machine.disk_work import DISKS
from penstock.remote.merged import Spot

_OPEN_FILES = 256
_LEFT_OUT_SECONDS = 60.0
"""A disk that has failed may have been mended."""
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
"""The flag of a read that does not wait; 0 where Python was built without it."""


@dataclass(frozen=True, slots=True, eq=False)
class WriteJob:
    """A block to be written, and what to do then: with None, or with the error."""

    spot: Spot
    data: memoryview
    done: Callable[[OSError | StorageError | None], None]
    let_go: Callable[[], None]
    """Called once, after `done`: the data is not read any more."""


class _Turn:
    """The blocks that a thread writes, one after the other."""

    def __init__(self, jobs: Iterable[WriteJob]) -> None:
        self.left = deque(jobs)
        self.current: WriteJob | None = None
        self.given_up: WriteJob | None = None
        """The one whose writer was told that it is not stored, while the thread was in it."""
        self.results: deque[tuple[WriteJob, OSError | StorageError | None]] = deque()

    def next(self) -> WriteJob | None:
        """The next block to be written; in the thread."""
        try:
            self.current = self.left.popleft()
        except IndexError:
            self.current = None
        return self.current


class MergedDisk:
    """The directory, which keeps so many bytes free; `name_of` gives the name of the file with a number."""

    def __init__(self, directory: Path, reserve: int, name_of: Callable[[int], str]) -> None:
        self.directory = directory
        self._reserve = reserve
        self._name_of = name_of
        self.writes = DiskThreads(f"write {directory}", 1)
        self.reads = DiskThreads(f"read {directory}", 2)
        self._waiting: list[WriteJob] = []
        self._turn: _Turn | None = None
        self._is_asked = False
        self._files: OrderedDict[int, int] = OrderedDict()
        self._guard = Lock()
        """Held while a thread opens, names or forgets a file."""
        self._broken = ""
        self._failed = -math.inf
        """The time of the last write that failed."""
        self.written = 0
        """Bytes."""
        self._free = self._look()

    @property
    def hangs(self) -> bool:
        """True while a call takes longer than a disk that works does."""
        return self.writes.hangs or self.reads.hangs

    @property
    def room(self) -> int:
        """The bytes that it takes beyond the reserve: none while it hangs, and for a while after a failure."""
        is_out = self.hangs or self._broken or time.monotonic() - self._failed < _LEFT_OUT_SECONDS
        return 0 if is_out else max(0, self._free)

    def write(self, job: WriteJob) -> None:
        """Write a block, in its turn."""
        self._waiting.append(job)
        if self._turn is None:
            self._begin_turn()
        elif self.writes.hangs:
            asyncio.get_running_loop().call_soon(self._give_up)

    async def read(self, first: Spot, target: memoryview) -> None:
        """Fill this with the bytes of neighbouring blocks; StorageError, FileNotFoundError, OSError."""
        if self.reads.hangs:
            raise self._hanging()
        try:
            await self.reads.run(self._read, first, target)
        except asyncio.CancelledError:
            if self.reads.hangs:  # it was given up before it had begun
                raise self._hanging() from None
            raise

    def read_cached(self, first: Spot, target: memoryview) -> int:
        """Copy what need not be waited for, out of a file that is open; its bytes."""
        if not self._guard.acquire(blocking=False):
            return 0  # a thread opens a file, and a disk may keep it waiting
        try:
            if first.path not in self._files:
                return 0
            began = time.perf_counter()
            count = os.preadv(self._file(first.path, is_there=True), [target], first.offset, NOWAIT)
        except (OSError, NotImplementedError):  # it is on the disk, or the system can't tell: the thread reads it
            return 0
        finally:
            self._guard.release()
        DISKS.has_read(self._name_of(first.path), count, time.perf_counter() - began)
        return count

    def look(self) -> None:
        """Ask for its room, and give up what waits where it hangs."""
        if not self._is_asked:
            self._is_asked = True
            self.writes.run(self._look).add_done_callback(self._looked)
        if self.writes.hangs:
            self._give_up()
        if self.reads.hangs:
            self.reads.give_up()

    def close(self) -> None:
        """End the threads, and close the files."""
        self.writes.close()
        self.reads.close()
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    # --- in threads

    def sync(self, paths: Iterable[int]) -> None:
        """Wait until these files are on the disk; StorageError."""
        try:
            for path in paths:
                with self._opened(path, is_there=True) as file:
                    os.fsync(file)
        except FileNotFoundError:
            return  # released meanwhile
        except OSError as error:
            raise StorageError(f"{self.directory} can't be written: {error}") from error

    def rename(self, path: int, change: Callable[[], None]) -> None:
        """Give a file the name that it has after the change. OSError."""
        with self._guard:
            before = self._name_of(path)
            change()
            Path(before).rename(self._name_of(path))

    def remove(self, paths: Iterable[int]) -> None:
        """Remove files."""
        with self._guard:
            files = [file for path in paths if (file := self._files.pop(path, None)) is not None]
        for file in files:
            os.close(file)
        for path in paths:
            Path(self._name_of(path)).unlink(missing_ok=True)

    def _write(self, turn: _Turn) -> int:
        """Write a turn's blocks; the room that is left."""
        room = self._look()
        while (job := turn.next()) is not None:
            room -= len(job.data)
            try:
                if self._broken or room < 0:
                    why = self._broken or f"fewer than {self._reserve} bytes are free"
                    raise StorageError(f"{self.directory} takes no more: {why}")
                self._pwrite(job.spot, job.data)
                turn.results.append((job, None))
            except (OSError, StorageError) as error:
                turn.results.append((job, error))
        return room

    def _pwrite(self, spot: Spot, data: memoryview) -> None:
        offset, left = spot.offset, data
        began = time.perf_counter()
        with self._opened(spot.path) as file:
            while left:
                written = os.pwrite(file, left, offset)
                left, offset = left[written:], offset + written
        DISKS.has_written(self._name_of(spot.path), len(data), time.perf_counter() - began)

    def _read(self, first: Spot, target: memoryview) -> None:
        offset, view = first.offset, target
        began = time.perf_counter()
        with self._opened(first.path, is_there=True) as file:
            while view:
                count = os.preadv(file, [view], offset)
                if not count:
                    view[:] = bytes(len(view))  # the reader finds that bytes are missing, and gets no other rows
                    break
                view, offset = view[count:], offset + count
        DISKS.has_read(self._name_of(first.path), len(target), time.perf_counter() - began)

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
        file = self._files[path] = os.open(self._name_of(path), flags, 0o600)
        if len(self._files) > _OPEN_FILES:
            _, oldest = self._files.popitem(last=False)
            os.close(oldest)
        return file

    def _look(self) -> int:
        try:
            system = os.statvfs(self.directory)
        except OSError as error:
            self._broken = str(error)
            return 0
        return system.f_bavail * system.f_frsize - self._reserve

    # --- in the loop

    def _begin_turn(self) -> None:
        jobs, self._waiting = self._waiting, []
        self._turn = turn = _Turn(jobs)
        self.writes.run(self._write, turn).add_done_callback(functools.partial(self._told, turn))

    def _told(self, turn: _Turn, done: asyncio.Future[int]) -> None:
        self._free = done.result()
        self._tell(turn)
        self._turn = None
        if self._waiting:
            self._begin_turn()

    def _tell(self, turn: _Turn) -> None:
        """Say what became of the blocks that were written so far."""
        while turn.results:
            job, error = turn.results.popleft()
            if isinstance(error, OSError):
                self._failed = time.monotonic()
            if error is None:
                self.written += len(job.data)
            if job is not turn.given_up:
                job.done(error)
            job.let_go()

    def _give_up(self) -> None:
        """Give up the blocks that wait while the disk hangs, and the one that its thread is in."""
        if (turn := self._turn) is None:
            return
        self._tell(turn)
        given_up, self._waiting = self._waiting, []
        while turn.left:
            given_up.append(turn.left.popleft())
        for job in given_up:
            job.done(self._hanging())
            job.let_go()
        if turn.current is not None and turn.given_up is None:
            turn.given_up = turn.current
            turn.current.done(self._hanging())

    def _looked(self, asked: asyncio.Future[int]) -> None:
        self._is_asked = False
        if not asked.cancelled():
            self._free = asked.result()

    def _hanging(self) -> StorageError:
        return StorageError(f"{self.directory} hangs: a call has been under way for more than {HANGS_SECONDS:.0f} s")
