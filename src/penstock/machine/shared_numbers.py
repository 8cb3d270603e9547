# SPDX-License-Identifier: Apache-2.0
"""Numbers that outlive their process: another one of the host reads them as they were when it was killed.

They lie in memory without a name, which is gone when all who know it are. The writer changes a copy of its own, and
`commit` makes all changes visible at once: a reader after the writer's death sees all of a commit or nothing.
The layout is `active slot, bytes of the names` (8 bytes each), the names by lines, and two slots of 8 bytes a number.

Limits: numbers are signed, of 64 bits. A reader while the writer lives can't count on what belongs together.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence

_HEAD = struct.Struct("<qq")
_NUMBER = 8


class SharedNumbers:
    """The writer's side. `values` is its copy, in the order of the names."""

    def __init__(self, names: Sequence[str]) -> None:
        text = "\n".join(names).encode()
        text += b"\n" * (-len(text) % _NUMBER)
        self.descriptor = os.memfd_create("penstock-numbers", os.MFD_CLOEXEC)
        size = _HEAD.size + len(text) + 2 * _NUMBER * len(names)
        os.ftruncate(self.descriptor, size)
        self._map = mmap.mmap(self.descriptor, size)
        self._map[: _HEAD.size + len(text)] = _HEAD.pack(0, len(text)) + text
        self._view = memoryview(self._map)
        first = _HEAD.size + len(text)
        middle = first + _NUMBER * len(names)
        self._active = self._view[:_NUMBER].cast("q")
        self._slots = (self._view[first:middle].cast("q"), self._view[middle:].cast("q"))
        self.values = memoryview(bytearray(_NUMBER * len(names))).cast("q")

    def commit(self) -> None:
        """Let readers see the values as they are now."""
        other = 1 - self._active[0]
        self._slots[other][:] = self.values
        self._active[0] = other

    def close(self) -> None:
        """Give back the memory; idempotent. A reader that has opened it keeps it."""
        if self.descriptor >= 0:
            for view in (self._active, *self._slots, self._view):
                view.release()
            self._map.close()
            os.close(self.descriptor)
            self.descriptor = -1


class NumbersOfAnother:
    """The reader's side: the numbers of a process of this host and user, by its id and its descriptor's number."""

    def __init__(self, pid: int, descriptor: int) -> None:
        """Raises OSError where they can't be opened."""
        self._descriptor = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> dict[str, int]:
        """The numbers by their names; none where that is no memory of such numbers."""
        data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        if len(data) < _HEAD.size:
            return {}
        active, length = _HEAD.unpack_from(data)
        names = data[_HEAD.size : _HEAD.size + length].decode().split()
        first = _HEAD.size + length + active * _NUMBER * len(names)
        return dict(zip(names, struct.unpack_from(f"<{len(names)}q", data, first), strict=True))

    def close(self) -> None:
        """Forget them; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
