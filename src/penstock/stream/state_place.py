# SPDX-License-Identifier: Apache-2.0
"""The place of the state of a task: its memory, or files of a local disk that are mapped into it.

All that state consists of is made here: arrays by `zeros`, batches and keys by `settled`. The runner says where, for
the length of a subtask, so that it need not be handed through every operator and every variable. Files are read and
written as memory is; the kernel keeps as much of them in memory as there is room for, and takes it back from a task
that needs it. So the figures of a task are those of memory as long as its state fits the machine, and a state that
does not fits the disk.

A file has no name from the moment it is made, so nothing is left behind, not even after `kill -9`. Its blocks are
taken when it is made: a disk that is full is an error of the state that grows, and no signal that kills the task. It
is open while it is made only: Python's own map holds a descriptor, and a state of some thousand pieces would need
more of them than a process may have.

Limits: pieces below `LEAST` bytes stay in memory, and so do dictionaries of Arrow. A file ends with the last array
over it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import NoStorageError
from penstock.record.layout import contains

LEAST = 1 << 16


class Held(Protocol):
    """A part of state: an array, a batch, or what holds some of them."""

    @property
    def nbytes(self) -> int:
        """Its bytes, with the room that it keeps for what may come."""


def bytes_of(parts: Iterable[Held | None]) -> int:
    """The bytes of some parts."""
    return sum(part.nbytes for part in parts if part is not None)


def state_figures(rows: int, *parts: Held | None) -> dict[str, float]:
    """The figures of a step's state: its rows, or keys, and the bytes of all its parts."""
    return {"state_rows": float(rows), "state_bytes": float(bytes_of(parts))}


class StateFiles:
    """Mapped files in the first of these folders that has room."""

    def __init__(self, folders: Sequence[str], least: int = LEAST) -> None:
        self._folders = tuple(folders)
        self.least = least
        """Pieces of fewer bytes stay in memory."""

    def mapped(self, size: int) -> memoryview:
        """So many zero bytes; raises NoStorageError where no folder has them."""
        failure: OSError | None = None
        for folder in self._folders:
            try:
                return _mapped(folder, size)
            except OSError as error:
                failure = error
        raise NoStorageError(
            f"state needs {size} bytes more, and none of {', '.join(self._folders)} has them ({failure}): make room"
            " there, or name other folders in spark.penstock.blocking.directories"
        ) from failure


_CURRENT: ContextVar[StateFiles | None] = ContextVar("penstock_state_place", default=None)


@contextmanager
def state_in(files: StateFiles | None) -> Iterator[None]:
    """Make this the place of all state that is made in the block; None: memory."""
    token = _CURRENT.set(files)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def zeros(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of zeros, which cost nothing before they are used."""
    files, kind = _CURRENT.get(), np.dtype(dtype)
    size = count * kind.itemsize
    if files is None or size < max(1, files.least):
        return np.zeros(count, kind)
    return np.frombuffer(files.mapped(size), kind)


def settled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, where state lies; it is never changed."""
    files = _CURRENT.get()
    if (
        files is None
        or batch.nbytes < files.least
        or any(contains(each.type, pa.types.is_dictionary) for each in batch.schema)
    ):
        return batch
    measured = pa.MockOutputStream()
    _write(batch, measured)
    place = pa.py_buffer(files.mapped(measured.size()))
    with pa.FixedSizeBufferWriter(place) as sink:
        _write(batch, sink)
    return pa.ipc.open_stream(place).read_next_batch()


def settled_columns(columns: Sequence[pa.Array]) -> list[pa.Array]:
    """The columns, all of one length, where state lies."""
    if _CURRENT.get() is None or not columns:
        return list(columns)
    names = [str(number) for number in range(len(columns))]
    return list(settled(pa.RecordBatch.from_arrays(list(columns), names=names)).columns)


def _write(batch: pa.RecordBatch, sink: pa.NativeFile) -> None:
    """Write the batch column after column: `serialize` would make a copy of it in memory first."""
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def _mapped(folder: str, size: int) -> memoryview:
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            file.truncate(size)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _LIBRARY.mmap(None, size, access, mmap.MAP_SHARED, file.fileno(), 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    place = (ctypes.c_char * size).from_address(address)
    # Arrays and batches hold the place. At the end of the process they may still be read, and the kernel unmaps it.
    weakref.finalize(place, _LIBRARY.munmap, address, size).atexit = False
    return memoryview(place)


_FAILED: Final = ctypes.c_void_p(-1).value
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_LIBRARY.mmap.restype = ctypes.c_void_p
_LIBRARY.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_LIBRARY.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
