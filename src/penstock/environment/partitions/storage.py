# SPDX-License-Identifier: Apache-2.0
"""The storage of partitions: folders, the threads that wait for disks, and the reads for readers elsewhere."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.environment.partitions.folders import Folders
from penstock.environment.reading.file_reads import FileReads

THREADS = 2
"""Orders carried out at a time: one waits for the disk while another is checked."""

T = TypeVar("T")


class Storage:
    """The storage of one environment. `reserve` is the space, in bytes, that a directory keeps free."""

    def __init__(self, folders: Folders, reads: FileReads, reserve: int) -> None:
        self.folders = folders
        self.reads = reads
        self.reserve = reserve
        self._stored_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-spill")
        self._is_closed = False

    @property
    def stored_bytes(self) -> int:
        """The bytes that were stored so far."""
        return self._stored_bytes

    def note_stored(self, length: int) -> None:
        """So many bytes were stored, here or by a writer."""
        self._stored_bytes += length

    async def have_room(self) -> bool:
        """Tell whether a partition that could not be stored may be in another directory."""
        return await self._loop.run_in_executor(None, self.folders.have_room)

    def run(self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        """Do something that waits, in a thread; then `done` gets its result, or `failed` its error, on the loop."""
        if self._is_closed:
            return
        running = self._loop.run_in_executor(self._threads, work)
        running.add_done_callback(functools.partial(_finish, done, failed))

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something on the loop, after a time."""
        self._loop.call_later(seconds, work)

    async def close(self) -> None:
        """Wait for what is under way, start nothing more; idempotent. Files that are left go with the application."""
        self._is_closed = True
        await self._loop.run_in_executor(None, self._threads.shutdown)


def _finish(done: Callable[[T], None], failed: Callable[[BaseException], None], running: asyncio.Future[T]) -> None:
    if running.cancelled():
        return
    error = running.exception()
    if error is not None:
        failed(error)
    else:
        done(running.result())
