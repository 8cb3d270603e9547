# SPDX-License-Identifier: Apache-2.0
"""Files without a name that a task still has open for writing: what it writes there is cut off.

Rules: a task closes its descriptors before it commits, or gives up. Where it does not, its partition has a copy of
the file or none at all, and the file has no name. The service keeps a descriptor of it, and cuts it off once a
second, until no process can write to it. Of one user it keeps few: with more no partition of his begins. Limits: what
is written within a second takes room; where the file system has no leases, as NFS has none, the service can't tell.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.errors import QuotaError
from penstock.external.disks import ServiceDisks

LOOK_SECONDS = 1.0
MOST_OPEN: Final = 64
"""Files of one user."""
_NO_LEASES: Final = (errno.EINVAL, errno.EACCES, errno.ENOLCK, errno.EOPNOTSUPP)


class OpenFile(NamedTuple):
    """A file without a name: the user whose task has it open, the folder where it lay, a descriptor to read it."""

    user: int
    folder: str
    descriptor: int


class LeftOpen:
    """All such files of a service."""

    def __init__(self, disks: ServiceDisks) -> None:
        self._disks = disks
        self._files: list[OpenFile] = []
        """The files that no thread looks at just now."""
        self._counts = Counter[int]()
        self._next: asyncio.TimerHandle | None = None
        self._is_closed = False

    def add(self, user: int, folder: str, descriptors: Iterable[int]) -> None:
        """Take descriptors over."""
        for descriptor in descriptors:
            self._counts[user] += 1
            self._keep(OpenFile(user, folder, descriptor))

    def refuse_too_many(self, user: int) -> None:
        """QuotaError for a user whose tasks have too many of them open."""
        if self._counts[user] >= MOST_OPEN:
            raise QuotaError(
                f"tasks of user {user} have {self._counts[user]} files of this host's shuffle service open for"
                " writing that are no partition's any more: they must close what they were lent, or end"
            )

    def close(self) -> None:
        """Close all; idempotent."""
        self._is_closed = True
        if self._next is not None:
            self._next.cancel()
            self._next = None
        files, self._files = self._files, []
        for file in files:
            os.close(file.descriptor)

    def _keep(self, file: OpenFile) -> None:
        if self._is_closed:
            os.close(file.descriptor)
            return
        self._files.append(file)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._next = None
        files, self._files = self._files, []
        for file in files:
            looking = self._disks.run(file.folder, _cut_off, file.descriptor)
            looking.add_done_callback(lambda done, file=file: self.looked(file, done.result()))  # type: ignore[misc]

    def looked(self, file: OpenFile, is_open: bool) -> None:
        """Keep a file that a task has open still."""
        if is_open:
            self._keep(file)
            return
        self._counts[file.user] -= 1
        if not self._counts[file.user]:
            del self._counts[file.user]


def is_written_to(descriptor: int) -> bool:
    """Tell whether a process has the file open for writing: the system refuses a lease of it then."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        if error.errno in _NO_LEASES:
            return False
        raise
    return False


def cut(descriptor: int) -> None:
    """Leave nothing in a file that this process may read, and has open."""
    writing = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(writing, 0)
    finally:
        os.close(writing)


def _cut_off(descriptor: int) -> bool:
    """Cut a file off; False, and its descriptor is closed, where no process can write to it, or it can't be cut."""
    try:
        is_open = is_written_to(descriptor)
        if is_open:
            cut(descriptor)
    except OSError:
        is_open = False
    if not is_open:
        os.close(descriptor)
    return is_open
