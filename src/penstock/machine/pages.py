# SPDX-License-Identifier: Apache-2.0
"""The pages of a mapped file, read before they are looked at: what the disk does not give is an error then.

A look at such a page would end the process (SIGBUS). The kernel is asked to fill the map's pages; other threads go on
meanwhile. Before Linux 6.9 it may ask a disk that fails for ever: there the bytes are read, some at a time, and those
that have come are in the cache.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from typing import Final

_POPULATE_READ: Final = 22
"""MADV_POPULATE_READ; Python has no name for it."""
_SCRATCH_BYTES: Final = 1 << 20
_scratch = threading.local()


class _Buffer(ctypes.Structure):
    """`Py_buffer`, through which a map that can't be written to tells its address."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def can_populate(release: str) -> bool:
    """Tell whether a kernel of this release (`os.uname`) fills pages, and says so where it can't."""
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return major.isdigit() and minor.isdigit() and (int(major), int(minor)) >= (6, 9)


_CAN_POPULATE = can_populate(os.uname().release)


def bring_in(mapped: mmap.mmap, descriptor: int, begin: int, end: int, *, populates: bool = _CAN_POPULATE) -> None:
    """Have the pages of these bytes of a file's map in memory. OSError where they can't be had."""
    if not (populates and _populate(mapped, begin, end)):
        _read(descriptor, begin, end)


def _populate(mapped: mmap.mmap, begin: int, end: int) -> bool:
    """Have the kernel fill the pages; False where it does not, and to read may tell why."""
    start = begin // mmap.PAGESIZE * mmap.PAGESIZE
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapped), ctypes.byref(buffer), 0)
    try:
        # The C library's, and not the map's own: that one lets no other thread run while the disk works.
        failed = _LIBRARY.madvise(buffer.buf + start, end - start, _POPULATE_READ)
        number = ctypes.get_errno()
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    if failed and number == errno.EFAULT:
        raise OSError(errno.EIO, f"the bytes {begin} to {end} can't be read")
    return not failed


def _read(descriptor: int, begin: int, end: int) -> None:
    scratch = getattr(_scratch, "bytes", None)
    if scratch is None:
        scratch = _scratch.bytes = memoryview(bytearray(_SCRATCH_BYTES))
    while begin < end:
        count = os.preadv(descriptor, [scratch[: end - begin]], begin)
        if not count:
            raise OSError(errno.EIO, f"it ends at {begin}, before {end}")
        begin += count


_LIBRARY = ctypes.CDLL(None, use_errno=True)
_LIBRARY.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
