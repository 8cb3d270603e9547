# SPDX-License-Identifier: Apache-2.0
"""A range of a stored partition as chunks to be sent: the messages of its stream, gathered and cut to one size.

Everything but `place`, `chunks_left` and `is_at_end` waits for a disk and runs in a thread, one call at a time. Bytes
are read with `preadv` before the file's map is touched: a page fault would hold the interpreter, and with it the
loop, while the disk works.
"""

from __future__ import annotations

import bisect
import itertools
import os
import threading
from collections.abc import Iterator

from penstock.partition.stored import OpenStream, StreamedRange, Stretch

_scratch = threading.local()


class ChunkedRange:
    """One reader's way through its range."""

    __slots__ = (
        "_at", "_at_end", "_chunk", "_consumed", "_left", "_messages", "_open", "_parts", "_place", "_prefix",
        "_size", "_starts", "_stored", "_stretches", "_warmed",
    )  # fmt: skip

    def __init__(self, stored: StreamedRange, chunk: int) -> None:
        self._stored = stored
        self._chunk = chunk
        self._open: OpenStream | None = None
        self._prefix = 0
        self._stretches: list[Stretch] = []
        self._starts: list[int] = []
        self._at = self._warmed = 0
        self._messages: Iterator[bytes | memoryview] = iter(())
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._consumed = 0
        self._left = chunk
        self._place = (stored.start, 0)
        self._at_end = False

    @property
    def place(self) -> tuple[str, int]:
        """The file it is in, and the offset it reads next."""
        return self._place

    @property
    def chunks_left(self) -> int:
        """About how many chunks there are still; at least one before the end."""
        return 0 if self._at_end else max(1, self._left // self._chunk)

    @property
    def is_at_end(self) -> bool:
        """True if the last chunk was given."""
        return self._at_end

    def read(self) -> bytes | None:
        """The next chunk; None at the first call, which opens the files and finds the place. Raises what is wrong."""
        if self._open is None:
            self._open = self._stored.open()
            self._prefix = self._open.prefix
            self._stretches = self._open.stretches
            self._starts = list(itertools.accumulate((each.end - each.begin for each in self._stretches), initial=0))
            self._messages = self._open.messages()
            self._find_place()
            return None
        self._warm()
        self._gather()
        chunk = self._cut()
        if not self._size:
            self._gather()  # it must be known with the last chunk whether there is more, not after it
            self._at_end = not self._size
        self._find_place()
        return chunk

    def _gather(self) -> None:
        while self._size < self._chunk:
            message = next(self._messages, None)
            if message is None:
                return
            self._parts.append(message)
            self._size += len(message)
            self._consumed += len(message) + self._prefix

    def _cut(self) -> bytes:
        """At most a chunk of what was gathered; the rest stays."""
        parts, self._parts = self._parts, []
        over = self._size - self._chunk
        if over > 0:
            last = memoryview(parts.pop())
            parts.append(last[: len(last) - over])
            self._parts.append(last[len(last) - over :])
        self._size = max(0, over)
        return b"".join(parts)

    def _find_place(self) -> None:
        """Find the place of the range's next unread byte, and the number of bytes from there on."""
        done = self._consumed - self._size
        self._left = max(0, sum((each.end - each.begin) * each.times for each in self._stretches) - done)
        for start, stretch in zip(self._starts, self._stretches, strict=False):
            size = (stretch.end - stretch.begin) * stretch.times
            if done < size:
                inside = done // stretch.times
                self._at = start + inside
                self._place = (stretch.file, stretch.begin + inside)
                return
            done -= size

    def _warm(self) -> None:
        """Read what the next chunk needs into the page cache: of each stretch its own bytes, and each byte once."""
        begin = max(self._at, self._warmed)
        self._warmed = min(self._at + 2 * self._chunk, self._starts[-1])
        number = max(0, bisect.bisect_right(self._starts, begin) - 1)
        while begin < self._warmed:
            start, stretch = self._starts[number], self._stretches[number]
            size = min(self._warmed, self._starts[number + 1]) - begin
            fetch(stretch.file, stretch.begin + begin - start, size)
            begin += size
            number += 1


def fetch(file: str, offset: int, size: int) -> None:
    """Read these bytes into the page cache, where the file is still there."""
    scratch = getattr(_scratch, "bytes", None)
    if scratch is None or len(scratch) < size:
        scratch = _scratch.bytes = bytearray(size)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # released meanwhile: what is mapped stays readable, and what is not is the answer's business
    try:
        os.preadv(descriptor, [memoryview(scratch)[:size]], offset)
    finally:
        os.close(descriptor)
