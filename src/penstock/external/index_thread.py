# SPDX-License-Identifier: Apache-2.0
"""The index of a host service in a thread of its own: its disk holds up only those who need the index.

Rules: rows are written in the order in which they were asked for. Who needs a row waits for it, for as long as a disk
that works may take; then he hears that the disk hangs, and so do others at once until it goes on. A row that he gave
up may be written yet: what undoes it is written after it. A full disk keeps nothing from going: a row about it that
can't be written follows when there is room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import StorageError
from penstock.machine import disk_threads
from penstock.machine.disk_threads import DiskThreads

log = logging.getLogger("penstock.external")

T = TypeVar("T")


class IndexThread:
    """The index, once it was read."""

    def __init__(self, path: Path, close: Callable[[], None]) -> None:
        self._path = path
        self._close = close
        self._thread = DiskThreads("index", 1)
        self._unwritten: list[Callable[[], None]] = []
        self._is_over = False

    def check(self) -> None:
        """Raise StorageError while the index's disk hangs."""
        if self._thread.hangs:
            raise self._hung()

    async def write(self, write: Callable[[], T], undo: Callable[[], None] | None = None) -> T:
        """Write a row, and wait for it; StorageError where that can't be, or takes too long: then undo it."""
        self.check()
        writing = self._thread.run(write)
        writing.add_done_callback(heard)
        await asyncio.wait([writing], timeout=disk_threads.HANGS_SECONDS)
        try:
            if not writing.done():
                raise self._hung()
            return writing.result()
        except StorageError:
            if undo is not None:
                self.write_later(undo)
            raise

    async def written(self) -> None:
        """Wait for the rows that were asked for so far; StorageError where that takes too long."""
        await self.write(lambda: None)

    def write_later(self, write: Callable[[], None]) -> None:
        """Write a row about something that goes; on a full disk when there is room, at the end not any more."""
        if self._is_over:
            return

        def wrote(writing: asyncio.Future[None]) -> None:
            try:
                writing.result()
            except StorageError as error:
                log.warning("%s", error)
                self._unwritten.append(write)

        self._thread.run(write).add_done_callback(wrote)

    def write_now(self, write: Callable[[], None]) -> None:
        """As `write_later`, at the start, before clients are served."""
        try:
            write()
        except StorageError as error:
            log.warning("%s", error)
            self._unwritten.append(write)

    def write_again(self) -> None:
        """Write what could not be written."""
        unwritten, self._unwritten = self._unwritten, []
        for write in unwritten:
            self.write_later(write)

    async def close(self) -> None:
        """Write what is left, and close the index; a disk that hangs is not waited for."""
        self.write_again()
        await asyncio.wait([self._thread.run(self._close)], timeout=disk_threads.HANGS_SECONDS)
        self.let_go()

    def let_go(self) -> None:
        """End the thread; idempotent."""
        self._is_over = True
        self._thread.close()

    def _hung(self) -> StorageError:
        return StorageError(
            f"the disk of this host's shuffle service with {self._path} hangs: what needs the index ends"
            " with this error until it goes on. See to the disk, or give the service another first --dir"
        )


def heard(writing: asyncio.Future[Any]) -> None:
    """Take note of its error, as the request that waited for it may be gone."""
    if not writing.cancelled():
        writing.exception()
