# SPDX-License-Identifier: Apache-2.0
"""A task's part of a checkpoint in memory that another process of the host reads, to store it with those of others.

The other process opens the memory by the writer's process and descriptor, as the kernel shows it under `/proc`, so
no file is left that has to be removed. A descriptor that was closed may be another file's by then:
so the address of a memory also says which file it is. Linux only, as all of the service `local`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.checkpoint.storage import Buffer, PartFile

Address = tuple[int, int, int]
"""Of a memory: its descriptor, and the device and inode that it is."""
_COPY_BYTES: Final = 1 << 20


class PartMemory:
    """The bytes, as this process has them."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("penstock-part", os.MFD_CLOEXEC)
        found = os.fstat(self._fd)
        self.address: Address = (self._fd, found.st_dev, found.st_ino)
        self.size = 0
        """Bytes so far."""

    def write(self, data: Buffer) -> None:
        """Append bytes; raises OSError where there is no memory."""
        left = memoryview(data).cast("B")
        while len(left):
            written = os.write(self._fd, left)
            self.size += written
            left = left[written:]

    def close(self) -> None:
        """Give the memory back, as far as this process holds it; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_memory(pid: int, address: Address) -> int:
    """A descriptor of another process's memory; raises OSError where that is gone or not ours to read."""
    fd, device, inode = address
    opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    found = os.fstat(opened)
    if (found.st_dev, found.st_ino) != (device, inode):
        os.close(opened)
        raise FileNotFoundError(f"process {pid} has closed the memory of its part")
    return opened


def copy(source: int, size: int, target: PartFile) -> None:
    """Append so many bytes of this memory to a file; raises OSError, and EOFError where the memory has fewer."""
    done = 0
    while done < size:
        data = os.pread(source, min(_COPY_BYTES, size - done), done)
        if not data:
            raise EOFError(f"the memory of a part has {done} bytes, and {size} were handed over")
        target.write(data)
        done += len(data)
