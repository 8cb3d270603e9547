# SPDX-License-Identifier: Apache-2.0
"""Segment memory: one sealed memfd cut into equal segments, mapped by the environment and by its tasks.

Rules:

- The environment creates it and hands the file descriptor to tasks over a Unix socket; a task attaches. Both sides
  must use the same geometry, which travels beside the descriptor and is checked against the file's size.
- A task maps it when it attaches, the environment when it first looks into a segment: one whose tasks move their data
  by other services maps nothing.
- Sealed against shrinking and growing, so no process can make another one fault by truncating it.
- A segment's pages are made present with one `madvise` when its view is first taken. Measured on 256 MiB of pages
  that another process had touched: 18 µs for a segment of 256 KiB, against 75 µs in page faults when it is left to
  the first write. MAP_POPULATE over the whole mapping costs as little per segment, but allocates every page of the
  pool in the first task that attaches, used or not.

Limits: where there is no memfd (not Linux) an unlinked temporary file takes its place; it can't be sealed.
Not here: who may use which segment (the pools), and when a segment is free (the references).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
from types import TracebackType

from penstock.errors import InsufficientBuffersError, ProtocolError

MADV_POPULATE_READ = 22
"""Linux 5.14; maps shared memory writable as well. Older kernels refuse it and fault page by page."""


class SegmentMemory:
    """The mapped segments of one application on one host. Made by `create` or `attach`, ended by `close`."""

    __slots__ = ("_advise", "_count", "_fd", "_mapping", "_segment_size", "_views")

    def __init__(self, fd: int, count: int, segment_size: int) -> None:
        self._fd = fd
        self._count = count
        self._segment_size = segment_size
        self._mapping: mmap.mmap | None = None
        self._views: list[memoryview | None] = [None] * count
        self._advise = hasattr(mmap.mmap, "madvise")

    @classmethod
    def create(cls, count: int, segment_size: int, name: str = "penstock") -> SegmentMemory:
        """New memory for `count` segments; raises InsufficientBuffersError when the system refuses it."""
        if count < 1 or segment_size < 1:
            raise ValueError(f"{count} segments of {segment_size} bytes: both must be positive")
        size = count * segment_size
        fd = -1
        try:
            fd = _sealed_memfd(name, size) if hasattr(os, "memfd_create") else _unlinked_file(name, size)
            return cls(fd, count, segment_size)
        except (OSError, OverflowError, MemoryError) as error:
            if fd >= 0:
                os.close(fd)
            raise _refused(count, segment_size, error) from error

    @classmethod
    def attach(cls, fd: int, count: int, segment_size: int) -> SegmentMemory:
        """Map what another process created. Takes over the descriptor: it is closed here, also on failure."""
        try:
            size = os.fstat(fd).st_size
            if count < 1 or segment_size < 1 or size != count * segment_size:
                raise ProtocolError(f"{count} segments of {segment_size} bytes do not make the {size} bytes received")
            memory = cls(fd, count, segment_size)
            memory._map()
        except BaseException:
            os.close(fd)
            raise
        return memory

    @property
    def fd(self) -> int:
        """The descriptor to hand to tasks; stays this object's."""
        if self.closed:
            raise ValueError("the segment memory is closed")
        return self._fd

    @property
    def count(self) -> int:
        """The number of segments."""
        return self._count

    @property
    def segment_size(self) -> int:
        """Bytes of a segment."""
        return self._segment_size

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._fd < 0

    @property
    def is_mapped(self) -> bool:
        """True if this process has it in its address space."""
        return self._mapping is not None

    def view(self, index: int, offset: int = 0, length: int | None = None) -> memoryview:
        """The bytes of a segment, or of a part of it. Raises ProtocolError for what lies outside."""
        whole = self._views[index] if 0 <= index < self._count else None
        if whole is None:
            whole = self._first_view(index)
        if length is None:
            if offset == 0:
                return whole
            length = self._segment_size - offset
        if offset < 0 or length < 0 or offset + length > self._segment_size:
            raise ProtocolError(
                f"bytes {offset}..{offset + length} are not in segment {index} of {self._segment_size} bytes"
            )
        return whole[offset : offset + length]

    def _first_view(self, index: int) -> memoryview:
        if self.closed:
            raise ValueError("the segment memory is closed")
        if not 0 <= index < self._count:
            raise ProtocolError(f"there is no segment {index}: the memory has {self._count}")
        start, mapping = index * self._segment_size, self._map()
        if self._advise:
            try:
                mapping.madvise(MADV_POPULATE_READ, start, self._segment_size)
            except (OSError, ValueError):
                self._advise = False
        whole = self._views[index] = memoryview(mapping)[start : start + self._segment_size]
        return whole

    def _map(self) -> mmap.mmap:
        if self._mapping is None:
            try:
                self._mapping = mmap.mmap(self._fd, self._count * self._segment_size, flags=mmap.MAP_SHARED)
            except (OSError, OverflowError) as error:
                raise _refused(self._count, self._segment_size, error) from error
        return self._mapping

    def release_views(self) -> None:
        """Views that were given out are not to be used any more: using one raises. The memory stays mapped."""
        views, self._views = self._views, [None] * self._count
        for view in views:
            if view is not None:
                with contextlib.suppress(BufferError):
                    view.release()

    def close(self) -> None:
        """Unmap and close; idempotent. Views still held elsewhere keep their pages mapped until they are dropped."""
        if self.closed:
            return
        mapping, self._mapping = self._mapping, None
        fd, self._fd = self._fd, -1
        self.release_views()
        # A reader's view outlives us: the mapping goes with the last of them, the descriptor goes now.
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.close()
        os.close(fd)

    def __enter__(self) -> SegmentMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refused(count: int, segment_size: int, error: Exception) -> InsufficientBuffersError:
    return InsufficientBuffersError(
        f"cannot map {count * segment_size} bytes of network memory ({count} segments of {segment_size}): {error}. "
        "Lower spark.penstock.network.memory or give the host more memory."
    )


def _sealed_memfd(name: str, size: int) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _unlinked_file(name: str, size: int) -> int:
    """A file without a name. Its blocks are allocated now, because a full disk later would be a SIGBUS."""
    fd, path = tempfile.mkstemp(prefix=f"{name}-")
    try:
        os.unlink(path)  # noqa: PTH108  (a Path object for one call says nothing more)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd
