# SPDX-License-Identifier: Apache-2.0
"""A file of a partition while it is written: complete under its own name, or not there.

Rules:

- Written under a temporary name; `publish` gives the file its own. `abort`, and every error, removes it. A file that
  is read while it is written (`is_read_meanwhile`) has its own name from the beginning.
- Written with `pwritev`, never gathered into one piece; short writes are continued. Mostly at the end, but a place
  can be claimed and filled later.
- `reserve` bytes of the file system stay free: looked at before the first byte, every 256 KiB, and where the caller
  says what it is about to write; several writers may miss it by as much each. A full disk and a reserve that is
  reached are waited out for some seconds (`patience`). Then they are one clear error, and the space is given back.
- A file that another process has made is written to by a copy of its descriptor, and stays that one's: there is
  nothing to publish, and nothing is removed.
- No fsync. A partition outlives its task, not its host's crash: after one it is produced again, and should a torn
  file be left behind, its checksums say so.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError, StorageError
from penstock.machine.disk_work import DISKS
from penstock.partition.patience import Patience
from penstock.shuffle.ids import PartitionId

_MAY_PASS = (errno.ENOSPC, errno.EDQUOT)
FULL = (*_MAY_PASS, errno.EFBIG)
"""The errors of a file system that has no room."""

_LOOK_EVERY = 256 << 10
_PARTS = 1024
"""IOV_MAX of Linux: more parts than this are refused by `pwritev`."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options for writing a blocking partition.

    `compression` is `none`, `lz4` or `zstd`; a sort-merge writer appends a region when it holds `sort_buffer` bytes;
    `reserve` bytes stay free on the file system. `opened` are descriptors of files, by their names, that another
    process has made for this partition; others are made in its folder.
    """

    compression: str = "none"
    sort_buffer: int = 32 << 20
    reserve: int = 0
    opened: Mapping[str, int] = field(default_factory=dict)


class FileOutput:
    """One file that is being written. Life: any number of `append`, then `seal` and `publish`, or `abort`."""

    __slots__ = ("_fd", "_is_lent", "_partition", "_reserve", "_temporary", "_unseen", "path", "size", "writes")

    def __init__(
        self,
        path: Path,
        partition: PartitionId,
        reserve: int = 0,
        opened: int = -1,
        *,
        is_read_meanwhile: bool = False,
    ) -> None:
        self.path = path
        self.size = 0
        self.writes = 0
        self._temporary: Path | None = None
        self._partition = partition
        self._reserve = reserve
        self._unseen = 0
        self._fd = -1
        self._is_lent = opened >= 0
        if self._is_lent:
            self._fd = os.dup(opened)
            return
        temporary = path if is_read_meanwhile else path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            self._fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failure(error) from error
        self._temporary = temporary

    @property
    def is_open(self) -> bool:
        """True if it can be written to."""
        return self._fd >= 0

    def append(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write these bytes after the end; errors as of `write`."""
        self.write(parts, self.size)

    def claim(self, size: int) -> int:
        """The offset of so many bytes after the end, which are to be written later; till then they are a hole."""
        offset = self.size
        self.size += size
        return offset

    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        """Write these bytes there. PenstockError, with the file removed, when they can't be stored."""
        left = parts
        size = sum(map(len, left))
        if size > self._unseen:
            self.ensure_room(size)
        self._unseen -= size
        patience = Patience()
        while size:
            began = time.perf_counter()
            try:
                written = os.pwritev(self._fd, left[:_PARTS], offset)
            except OSError as error:
                if error.errno in _MAY_PASS and patience.waits():
                    continue
                self.abort()
                raise self._failure(error) from error
            DISKS.has_written(str(self.path), written, time.perf_counter() - began)
            self.writes += 1
            offset += written
            self.size = max(self.size, offset)
            size -= written
            left = cut([memoryview(part) for part in left], written)[1] if size else []

    def ensure_room(self, size: int) -> None:
        """Look whether so many bytes may be appended and the reserve is kept; PenstockError, file removed, if not."""
        self._unseen = max(size, _LOOK_EVERY)
        patience = Patience()
        while self._reserve:
            system = os.fstatvfs(self._fd)
            free = system.f_bavail * system.f_frsize
            if free - size >= self._reserve:
                return
            if patience.waits():
                continue
            self.abort()
            raise StorageError(
                f"cannot write partition {self._partition} to {self.path} after {self.size} bytes: {free} bytes are "
                f"free in {self.path.parent}, {size} more are needed and {self._reserve} stay free "
                f"(spark.penstock.blocking.reserve). Free space there, or set spark.penstock.blocking.directories "
                f"to directories with more."
            )

    def seal(self) -> None:
        """No more bytes: close the file, which still has its temporary name."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            os.close(fd)  # some file systems report a full disk only now
        except OSError as error:
            self.abort()
            raise self._failure(error) from error

    def keep(self) -> None:
        """The file, which is sealed, stays under the name that it has: no `abort` removes it any more."""
        self._temporary = None

    def publish(self) -> None:
        """Seal the file and give it its own name."""
        self.seal()
        if self._is_lent:
            return
        if self._temporary is None:
            raise ValueError(f"the file {self.path} is finished or given up")
        try:
            self._temporary.replace(self.path)
        except OSError as error:
            self.abort()
            raise self._failure(error) from error
        self._temporary = None

    def abort(self) -> None:
        """Give up: what is not published goes; idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def _failure(self, error: OSError) -> PenstockError:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return PenstockError(
                f"cannot open {self.path} for partition {self._partition}: too many open files. A hash "
                'partition opens one for each subpartition: use mode="blocking", fewer of them, or a higher ulimit -n'
            )
        what = "the disk is full" if error.errno in FULL else str(error)
        return StorageError(
            f"cannot write partition {self._partition} to {self.path} after {self.size} bytes: {what}. "
            f"Free space in {self.path.parent} or set spark.penstock.blocking.directories to directories with more."
        )


def cut(parts: list[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """The first `size` bytes, and the others."""
    for at, part in enumerate(parts):
        if size < len(part):
            return [*parts[:at], part[:size]], [part[size:], *parts[at + 1 :]]
        size -= len(part)
    return parts, []
