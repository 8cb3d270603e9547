# SPDX-License-Identifier: Apache-2.0
"""Reads files for readers on other hosts: in threads, in the order of the schedule, from a bounded memory.

The shell around `read_schedule`. A disk is waited for in a thread; the loop never touches a file.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from penstock.environment.reading.read_schedule import ReadSchedule

THREADS = 2
"""Reads at a time: one waits for the disk while the other copies."""


class FileReader(Protocol):
    """One who reads a file chunk by chunk."""

    @property
    def place(self) -> tuple[str, int]:
        """The file it is in, and the offset it reads next."""

    def read(self) -> bytes | None:
        """The next chunk; None where it only has found its place. Called in a thread, never twice at a time."""

    def take(self, chunk: bytes | None, error: BaseException | None) -> None:
        """Take the result of `read`, or its error, on the loop. A chunk is the reader's until it gives it back."""


class FileReads:
    """All reads of one environment: at most `memory` bytes, in chunks of `chunk` bytes at most."""

    def __init__(self, memory: int, chunk: int) -> None:
        self.chunk = chunk
        self._schedule: ReadSchedule[FileReader] = ReadSchedule(max(THREADS, memory // chunk))
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-read")
        self._busy = 0
        self._closed = False

    @property
    def bytes_held(self) -> int:
        """The bytes that are read or being read and not yet sent, at most."""
        return self._schedule.held * self.chunk

    def want(self, reader: FileReader) -> None:
        """The reader wishes for its next chunk; `take` is called when it is there."""
        self._schedule.want(reader, *reader.place)
        self._go()

    def withdraw(self, reader: FileReader) -> None:
        """The reader has gone; a read that is under way ends with its `take`."""
        self._schedule.withdraw(reader)

    def give_back(self) -> None:
        """A chunk was sent or dropped."""
        self._schedule.give_back()
        self._go()

    async def close(self) -> None:
        """Wait for the reads under way, start no others; idempotent."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    def _go(self) -> None:
        while self._busy < THREADS and not self._closed:
            reader = self._schedule.next()
            if reader is None:
                return
            self._busy += 1
            reading = asyncio.get_running_loop().run_in_executor(self._threads, reader.read)
            reading.add_done_callback(functools.partial(self._done, reader))

    def _done(self, reader: FileReader, reading: asyncio.Future[bytes | None]) -> None:
        self._busy -= 1
        error = reading.exception()
        chunk = None if error is not None else reading.result()
        if chunk is None:
            self._schedule.give_back()
        reader.take(chunk, error)
        self._go()
