# SPDX-License-Identifier: Apache-2.0
"""The disks of a host service: threads of its own for each, and what each last said of its room.

Rules: nothing that touches a disk runs in the event loop, `statvfs` neither. Before a partition begins the disks are
asked for their room, those that have not said so for a second. One that gives no answer within a second is taken only
where no other has room, and one that hangs is not taken. The index, on the first disk, has a thread of its own
(`index_thread`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from penstock.machine.disk_threads import DiskThreads
from penstock.partition.directories import DirectorySpace, look

T = TypeVar("T")
_THREADS = 4
ANSWER_SECONDS = FRESH_SECONDS = 1.0


class _ServiceDisk:
    """One folder's: its threads, and its room when it was last looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.threads = DiskThreads(f"disk {path}", _THREADS)
        self.space = look(path)
        self.looked = time.monotonic()
        self._asked: asyncio.Future[DirectorySpace] | None = None

    @property
    def is_fresh(self) -> bool:
        """True if its room need not be asked for."""
        return time.monotonic() - self.looked < FRESH_SECONDS

    @property
    def is_silent(self) -> bool:
        """True if it owes an answer."""
        return not self.is_fresh and self.threads.waited(time.monotonic()) > ANSWER_SECONDS

    def ask(self) -> asyncio.Future[DirectorySpace]:
        """Ask for its room, once at a time."""
        if self._asked is None:
            self._asked = self.threads.run(look, self.path)
            self._asked.add_done_callback(self._answered)
        return self._asked

    def _answered(self, asked: asyncio.Future[DirectorySpace]) -> None:
        self._asked = None
        self.looked = time.monotonic()
        self.space = asked.result()


class ServiceDisks:
    """The disks of these folders, which are there; each keeps `reserve` bytes free."""

    def __init__(self, paths: Sequence[Path], reserve: int) -> None:
        self._reserve = reserve
        self._disks = {f"{path}{os.sep}": _ServiceDisk(path) for path in paths}
        """By the beginning of the names of what lies there."""

    def run(self, folder: str, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Call this in a thread of the disk that a folder lies on; the first one's for any other folder."""
        found = next((disk for root, disk in self._disks.items() if folder.startswith(root)), None)
        return (found or next(iter(self._disks.values()))).threads.run(call, *arguments)

    async def spaces(self) -> list[DirectorySpace]:
        """The room of each, and the problem of one that hangs."""
        asked = [disk.ask() for disk in self._disks.values() if not disk.is_fresh and not disk.is_silent]
        if asked:
            await asyncio.wait(asked, timeout=ANSWER_SECONDS)
        return [self._judged(disk) for disk in self._disks.values()]

    def known(self) -> list[DirectorySpace]:
        """The room of each when it was last asked; all are asked again."""
        for disk in self._disks.values():
            disk.ask()
        return [disk.space for disk in self._disks.values()]

    def _judged(self, disk: _ServiceDisk) -> DirectorySpace:
        if disk.threads.hangs:
            return DirectorySpace(disk.path, problem="it hangs")
        if disk.is_silent:
            return replace(disk.space, free=min(disk.space.free, self._reserve + 1))
        return disk.space

    def close(self) -> None:
        """End the threads; idempotent."""
        for disk in self._disks.values():
            disk.threads.close()
