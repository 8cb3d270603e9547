# SPDX-License-Identifier: Apache-2.0
"""The sign that a query runs at a checkpoint location, for a process that is about to delete something there.

    owners/<epoch>-<token>.running   host, process and time of a driver that has the location, or had it

The driver holds a lock on its file as long as the query runs, and removes the file at the end. A file that is
not locked was left by a driver that died. On a file system without locks (an object store) a file alone says nothing
certain: its driver may run or be dead.

The sign fences no driver: two drivers may have one each, and the owners' claims say which of them may commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime

from pyarrow import fs

from penstock.machine.locations import is_here

RUNNING = ".running"


@dataclass(frozen=True, slots=True)
class Runner:
    """A driver that runs a query at a location, or did; `is_certain`: its lock says that it runs now."""

    text: str
    is_certain: bool


class RunningSign:
    """That of one driver."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._fs = filesystem
        self._folder = f"{root}/owners"
        self._path = ""
        self._release: weakref.finalize[[int], RunningSign] | None = None

    def put(self, owner: str) -> None:
        """Say that the query of this owner runs; raises OSError."""
        self._path = f"{self._folder}/{owner}{RUNNING}"
        is_locked = is_here(self._fs) and self._lock(self._path)
        since = datetime.now(UTC).isoformat(" ", "seconds")
        said = {"host": socket.gethostname(), "process": os.getpid(), "since": since, "locked": is_locked}
        with self._fs.open_output_stream(self._path) as stream:
            stream.write(json.dumps(said).encode())

    def take_away(self) -> None:
        """It does not run any more; may be called twice."""
        path, self._path = self._path, ""
        if path:
            with contextlib.suppress(OSError):
                self._fs.delete_file(path)
        if self._release is not None:
            self._release()

    def _lock(self, path: str) -> bool:
        """Hold the lock of the file, where its file system has locks."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._release = weakref.finalize(self, os.close, descriptor)
        return True


def runners(filesystem: fs.FileSystem, root: str) -> list[Runner]:
    """Those who have left a sign at a location; signs that a dead driver left are not among them. Raises OSError."""
    found = filesystem.get_file_info(fs.FileSelector(f"{root}/owners", allow_not_found=True))
    return [
        runner
        for info in found
        if info.base_name.endswith(RUNNING) and (runner := _runner(filesystem, info.path)) is not None
    ]


def _runner(filesystem: fs.FileSystem, path: str) -> Runner | None:
    try:
        with filesystem.open_input_stream(path) as stream:
            said = json.loads(stream.read() or b"{}")
    except FileNotFoundError:  # it has ended
        return None
    except ValueError:
        said = {}
    text = f"process {said.get('process', '?')} on {said.get('host', '?')}, since {said.get('since', '?')}"
    if is_here(filesystem) and (said.get("locked") or not said):
        return Runner(text, is_certain=True) if _is_held(path) else None
    return Runner(text, is_certain=False)


def _is_held(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
