# SPDX-License-Identifier: Apache-2.0
r"""The ends of lines: at `\n`, `\r` or `\r\n`, however a file mixes them, as Spark's readers see it.

A `\r` that nothing follows yet may be half of a line end: so it ends no line until the next byte is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

_MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which is no text."""
_FEED = ord("\n")
_BLANK = re.compile(rb"[\x00-\x20]*(?:\n|\Z)")


def behind_last_line(chunk: bytes) -> int:
    """The place after the last line that surely ends in these bytes; 0 if none does."""
    behind = chunk.rfind(b"\n") + 1
    return max(behind, chunk.rfind(b"\r", behind, max(behind, len(chunk) - 1)) + 1)


def cut_at_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes, cut after ends of lines; the last line may have none."""
    held: list[bytes] = []  # joined once: a line may be as long as the file
    for read in chunks:
        chunk = read
        if held and held[-1].endswith(b"\r"):
            held[-1], chunk = held[-1][:-1], b"\r" + chunk
        end = behind_last_line(chunk)
        if end:
            yield b"".join((*held, chunk[:end]))
            held.clear()
        held.append(chunk[end:])
    if any(held):
        yield b"".join(held)


def behind_line(chunk: bytes, start: int, *, is_all: bool) -> int:
    """The place after the first line end from `start` on; -1 if more bytes have to tell (if there are more)."""
    feed = chunk.find(b"\n", start)
    alone = chunk.find(b"\r", start, feed if feed >= 0 else len(chunk))
    if alone < 0 or alone + 1 == feed:
        return feed + 1 if feed >= 0 else -1
    return -1 if alone + 1 == len(chunk) and not is_all else alone + 1


def plain_lines(lines: bytes) -> bytes:
    r"""The same lines, each ended by `\n`."""
    return lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in lines else lines


def portions(lines: bytes, most: int) -> Iterator[bytes]:
    """Lines of which each is ended, at most so many at a time."""
    if len(lines) <= most or lines.count(b"\n") < most:
        yield lines
        return
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == _FEED) + 1
    cuts = [0, *ends[most - 1 :: most].tolist(), len(lines)]
    yield from filter(None, (lines[begin:end] for begin, end in pairwise(cuts)))


def without_mark(lines: bytes) -> bytes:
    """The begin of a file without a byte order mark."""
    return lines.removeprefix(_MARK)


def first_line_with_text(lines: bytes) -> tuple[bytes, bytes]:
    """That one, and what follows; both are empty where all lines are blank."""
    begin = 0
    while begin < len(lines) and (blank := _BLANK.match(lines, begin)) and blank.end() > begin:
        begin = blank.end()
    line, _, rest = lines[begin:].partition(b"\n")
    return line, rest
