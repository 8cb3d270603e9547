# SPDX-License-Identifier: Apache-2.0
"""The word for what a process works on: another one of the host reads it when this one was killed.

It lies in memory without a name, which is gone when both have closed it. A process has one, and tells it where it
goes from one part of its work to the next, twice for each batch: some hundred nanoseconds. Until it is opened, which
Spark's workers do once, telling does nothing. Limits: a word has at most `BYTES`, and its end is what is left out.
"""

from __future__ import annotations

import mmap
import os

BYTES = 120


class WorkSign:
    """The word of this process, as it writes it."""

    def __init__(self) -> None:
        self.descriptor = -1
        """The descriptor of the memory; -1 where it is not open."""
        self._map: mmap.mmap | None = None
        self._words: dict[str, bytes] = {}

    def open(self) -> None:
        """From now on it can be read; does something once."""
        if self._map is None:
            self.descriptor = os.memfd_create("penstock-work", os.MFD_CLOEXEC)
            os.ftruncate(self.descriptor, BYTES)
            self._map = mmap.mmap(self.descriptor, BYTES)

    def tell(self, word: str) -> None:
        """From now on it works on this; nothing in particular where the word is empty."""
        if self._map is not None:
            packed = self._words.get(word)
            if packed is None:
                packed = self._words[word] = _cut(word).ljust(BYTES, b"\0")
            self._map[:] = packed

    def close(self) -> None:
        """Give the memory back; idempotent."""
        if self._map is not None:
            self._map.close()
            os.close(self.descriptor)
            self._map, self.descriptor = None, -1


class WorkOfAnother:
    """The reader's side: the word of a process of this host and user, by its id and its descriptor's number."""

    def __init__(self, pid: int, descriptor: int) -> None:
        """Raises OSError where it can't be opened."""
        self._descriptor = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str:
        """The word that it told last."""
        return os.pread(self._descriptor, BYTES, 0).rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        """Forget it; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


WORK = WorkSign()
"""The sign of this process."""


def _cut(word: str) -> bytes:
    data = word.encode(errors="replace")
    return data if len(data) <= BYTES else data[: BYTES - 3].decode(errors="ignore").encode() + b"..."
