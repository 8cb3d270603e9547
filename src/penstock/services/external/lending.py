# SPDX-License-Identifier: Apache-2.0
"""The short way of a reader on the service's own host: it is lent a partition's data file, and reads that itself.

Rules: this way says nothing that fetching does not say. Extents, sums and states come from the port as ever, and each
extent has its checksum compared. The rest is fetched where anything is in the way: no socket, a service that is
another one's, or busy, or has ended, a file that was cut because its partition was released. The service then says
why that can't be. So a reader is there for a service that was restarted, too. A lender that has failed lends nothing
more. Files are read, not mapped: the service cuts those that it removes.

Up to `WINDOW` bytes were read and not given out, or a single stretch, and up to `OPEN_FILES` files are open. A reader
that comes then goes on when another one is done. One thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.errors import PartitionError, PenstockError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import LendFile
from penstock.partition.file_input import read_at
from penstock.services.external.fetches import WINDOW
from penstock.services.external.host_line import HostLine, HostSocket
from penstock.shuffle import PartitionId, Received

if TYPE_CHECKING:
    import pyarrow as pa

OPEN_FILES = 64
_ANSWER_SECONDS = 1.0


class Lender:
    """The files that one service of this host lends to one gate; `note` is told of the bytes that are read."""

    def __init__(self, place: HostSocket, key: ApplicationKey, note: Callable[[int], None]) -> None:
        self.note = note
        self.unread = 0
        """Bytes that were read, and not given out."""
        self.open: set[int] = set()
        self._place = place
        self._key = key
        self._line: HostLine | None = None
        self._has_failed = False

    def borrow(self, request: LendFile) -> int:
        """A descriptor of a data file, or -1 where there is none to be had."""
        if self._has_failed:
            return -1
        try:
            if self._line is None:
                self._line = HostLine(self._place, self._key, 0.0, lambda: None, _ANSWER_SECONDS)
            descriptor = self._line.borrow(request)
        except PartitionError:
            return -1
        except (PenstockError, OSError):
            self._has_failed = True
            self._hang_up()
            return -1
        self.open.add(descriptor)
        return descriptor

    @property
    def is_there(self) -> bool:
        """True while the service has not ended."""
        if self._line is not None and not self._line.is_there:
            self._has_failed = True
            self._hang_up()
        return self._line is not None

    def give_back(self, descriptor: int) -> None:
        """A file was read; idempotent."""
        if descriptor in self.open:
            self.open.remove(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Give everything back; idempotent."""
        for descriptor in list(self.open):
            self.give_back(descriptor)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class LentFile:
    """The data file of one partition, for one channel that will read `size` bytes of it; borrowed when it is read."""

    def __init__(self, lender: Lender, partition: PartitionId, number: int, size: int) -> None:
        self._lender = lender
        self._request = LendFile(partition, number, size)
        self._file: int | None = None

    @property
    def number(self) -> int:
        """The partition's number."""
        return self._request.number

    @property
    def may_read(self) -> bool:
        """True if others leave room for a stretch of this one."""
        lender = self._lender
        return lender.unread < WINDOW and (self._file is not None or len(lender.open) < OPEN_FILES)

    def read(self, offset: int, size: int) -> pa.Buffer | None:
        """So many bytes from there on, or None where they must be fetched."""
        lender = self._lender
        if self._file is None:
            self._file = lender.borrow(self._request)
        if self._file < 0 or not lender.is_there:
            return None
        import pyarrow as pa  # not above: who only writes has no need of it here

        data = pa.allocate_buffer(size)
        try:
            count = read_at(self._file, memoryview(data).cast("B"), offset)
        except OSError:
            return None
        if count < size:
            return None
        lender.note(size)
        return data

    def counted(self, size: int, batches: Iterator[Received]) -> Iterator[Received]:
        """Pass these batches on, and count the bytes that were read for them."""
        self._lender.unread += size
        return self._given(size, batches)

    def close(self) -> None:
        """Give the file back; idempotent."""
        if self._file is not None:
            self._lender.give_back(self._file)

    def _given(self, size: int, batches: Iterator[Received]) -> Iterator[Received]:
        yield from batches
        self._lender.unread -= size


def is_of_this_host(name: str) -> bool:
    """Tell whether this is an address of this host: one that a socket may be bound to."""
    with contextlib.suppress(OSError):
        family, kind, number, _, place = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.bind((place[0], 0))
            return True
    return False
