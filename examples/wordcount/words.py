# SPDX-License-Identifier: Apache-2.0
"""Words of a piece of text, counted by NumPy and Arrow; and the same in plain Python, to compare with.

No Python runs per word. A table of 256 bytes turns capitals into small letters and everything that is no word into
spaces; where word and space alternate are the offsets of an Arrow array laid over the very same bytes, of which
every second value is a word. Measured on 32 MB of Python's own sources, one core: 250 MB/s; with the spaces counted
along and dropped 170-240, with the spaces squeezed out first 130-210, Arrow's own `ascii_split_whitespace` 190,
`bytes.split` into a `Counter` 50-90.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])

_SPACE = 0x20
_WORD = re.compile("[0-9a-z_\u0080-\U0010ffff]+")
_SMALL = {ord("A") + i: ord("a") + i for i in range(26)}


def _byte_table() -> bytes:
    table = bytearray([_SPACE]) * 256
    for byte in range(256):
        if byte >= 0x80 or chr(byte).isalnum() or byte == ord("_"):
            table[byte] = bytes([byte]).lower()[0]
    return bytes(table)


_TABLE = _byte_table()


class NotTextError(ValueError):
    """The bytes are not UTF-8, or have a NUL among them."""


def count_words(text: bytes) -> pa.RecordBatch:
    """Each different word of the text with its number; raises NotTextError.

    The text must begin and end between two words. Only its different words are checked for being UTF-8: what
    stands between words is ASCII.
    """
    if b"\0" in text:
        raise NotTextError("it has a NUL byte")
    plain = text.translate(_TABLE)
    is_word = np.frombuffer(plain, np.uint8) != _SPACE
    changes = np.flatnonzero(is_word[1:] != is_word[:-1])
    offsets = np.empty(len(changes) + 2, np.int32)
    offsets[0], offsets[-1] = 0, len(plain)
    np.add(changes, 1, out=offsets[1:-1], casting="unsafe")
    runs = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(plain)])
    first = 0 if len(plain) and is_word[0] else 1
    positions = np.arange(first, len(runs), 2, dtype=np.int32)
    chosen = pa.Array.from_buffers(pa.int32(), len(positions), [None, pa.py_buffer(positions)])
    counts = runs.take(chosen).value_counts()
    try:
        words = counts.field(0).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise NotTextError("it is not UTF-8") from error
    return pa.RecordBatch.from_arrays([words, counts.field(1)], schema=SCHEMA)


def last_gap(text: bytes) -> int:
    """The place at which the text can be cut: after its last byte that belongs to no word, or 0."""
    window = 256
    while True:
        tail = text[-window:].translate(_TABLE)
        found = tail.rfind(b" ")
        if found >= 0:
            return len(text) - len(tail) + found + 1
        if window >= len(text):
            return 0
        window *= 16


def count_words_plainly(text: bytes) -> Counter[str]:
    """The same by decoding the text and a regular expression."""
    return Counter(_WORD.findall(text.decode().translate(_SMALL)))
