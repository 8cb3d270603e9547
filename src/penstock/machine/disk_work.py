# SPDX-License-Identifier: Apache-2.0
"""The time that this process has waited for disks: bytes and seconds of what it read and wrote, by disk.

A disk is named by the folder at which it is mounted, so that two folders on one disk are one. There is one ledger for
a process, `DISKS`, as there is one clock: who reads or writes files notes it there, on any thread. Limits: what the
kernel writes back later is no caller's time, and what it has in memory is read at once; libraries that open files
themselves note nothing.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

_PLACES = 4_096
"""Folders of which the disk is remembered."""
_UNKNOWN = "(unknown)"


@dataclass(slots=True)
class _DiskSums:
    """The work for one disk since the process began."""

    read_bytes: float = 0.0
    read_seconds: float = 0.0
    write_bytes: float = 0.0
    write_seconds: float = 0.0


class DiskWork:
    """The ledger of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._disks: dict[str, _DiskSums] = {}
        self._places: dict[str, str] = {}

    def has_read(self, path: str, size: int, seconds: float) -> None:
        """Count a read of a file: its bytes, and its seconds."""
        with self._lock:
            work = self._of(path)
            work.read_bytes += size
            work.read_seconds += seconds

    def has_written(self, path: str, size: int, seconds: float) -> None:
        """Count a write to a file: its bytes, and its seconds."""
        with self._lock:
            work = self._of(path)
            work.write_bytes += size
            work.write_seconds += seconds

    def figures(self) -> dict[str, dict[str, float]]:
        """The figures by disk."""
        with self._lock:
            return {
                disk: {
                    "read_bytes": work.read_bytes,
                    "read_seconds": work.read_seconds,
                    "write_bytes": work.write_bytes,
                    "write_seconds": work.write_seconds,
                }
                for disk, work in self._disks.items()
            }

    def _of(self, path: str) -> _DiskSums:
        folder = os.path.dirname(path)  # noqa: PTH120 - text in, text out, for every write
        disk = self._places.get(folder)
        if disk is None:
            if len(self._places) >= _PLACES:
                self._places.clear()
            disk = self._places[folder] = disk_of(folder)
        return self._disks.setdefault(disk, _DiskSums())


def disk_of(folder: str) -> str:
    """The folder at which the disk of a folder is mounted."""
    place = os.path.abspath(folder)  # noqa: PTH100 - as above
    try:
        while not os.path.ismount(place):
            place = os.path.dirname(place)  # noqa: PTH120
    except OSError:
        return _UNKNOWN
    return place


DISKS = DiskWork()
"""This process's."""
