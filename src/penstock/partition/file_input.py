# SPDX-License-Identifier: Apache-2.0
"""A file of a blocking partition while it is read: a memory map, and the errors that name where it is.

Rules: whatever lies over the map keeps it alive, so `close` only lets go of it. No file, or one that cannot be
opened, is a PartitionLostError; a file that is not what was written is an IncompleteDataError. Both name partition,
attempt, host and file. Limit: the map must not be cut while it is read (SIGBUS); files are only ever replaced and
unlinked, which leaves a map intact.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.shuffle.errors import IncompleteDataError, PartitionLostError
from penstock.shuffle.ids import PartitionId

if TYPE_CHECKING:
    import pyarrow as pa

_PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """Which partition a file should hold, and the host it is on."""

    partition: PartitionId
    host: str = ""

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> FileOrigin:
        """Inverse of `to_wire`; raises TypeError or ValueError on another shape."""
        partition, host = wire
        return cls(PartitionId.from_wire(tuple(partition)), str(host))

    def to_wire(self) -> tuple[Any, ...]:
        """As it travels to a reader, who may not know yet which attempt it reads."""
        return (self.partition.to_wire(), self.host)

    def __str__(self) -> str:
        on = f" on {self.host}" if self.host else ""
        return f"partition {self.partition} (attempt {self.partition.attempt}){on}"


class FileInput:
    """One file, mapped, or `data` that has come of it. `buffer` and `view` are its bytes."""

    __slots__ = ("_buffer", "_map", "_view", "path", "size", "where")

    def __init__(self, path: Path, where: FileOrigin, data: pa.Buffer | None = None) -> None:
        self.path = path
        self.where = where
        self._map: mmap.mmap | None = None
        self._buffer: pa.Buffer | None = data
        if data is not None:
            self.size = data.size
            self._view: memoryview | None = memoryview(data)
            return
        try:
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size:
                    self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise PartitionLostError(f"{where}: its file {path} is gone") from error
        except OSError as error:
            raise PartitionLostError(f"{where}: its file {path} cannot be read: {error}") from error
        self._view = memoryview(self._map if self._map is not None else b"")

    @property
    def buffer(self) -> pa.Buffer:
        """The file's bytes, for Arrow; ValueError when it is closed."""
        if self._buffer is None:
            import pyarrow as pa  # not above: an environment that gives views of its files has no use for Arrow

            self._buffer = pa.py_buffer(self.view)
        return self._buffer

    @property
    def view(self) -> memoryview:
        """The file's bytes; ValueError when it is closed."""
        if self._view is None:
            raise ValueError(f"the reader of {self.path} is closed")
        return self._view

    def will_need(self, begin: int, end: int) -> None:
        """Say that these bytes are read soon, so that the kernel fetches them now."""
        self._advise(mmap.MADV_WILLNEED, begin // _PAGE * _PAGE, end)

    def is_done_with(self, begin: int, end: int) -> None:
        """Say that these bytes were read: their pages leave this process, not the cache. They stay readable."""
        self._advise(mmap.MADV_DONTNEED, -(-begin // _PAGE) * _PAGE, end // _PAGE * _PAGE)

    def _advise(self, advice: int, begin: int, end: int) -> None:
        end = min(end, self.size)  # of a file that was cut, what is left
        if self._map is not None and end > begin:
            with suppress(OSError):  # advice, not a need
                self._map.madvise(advice, begin, end - begin)

    def incomplete(self, what: str) -> IncompleteDataError:
        """The error of a file that is not what was written."""
        error = IncompleteDataError(
            f"{self.where}: file {self.path} is damaged: {what}. The partition must be produced again."
        )
        error.partition = self.where.partition.to_wire()
        return error

    def close(self) -> None:
        """Let go of the map; idempotent. It goes with the last thing that lies over it."""
        self._buffer = self._map = self._view = None
