# SPDX-License-Identifier: Apache-2.0
"""Murmur3_x86_32 over columns, in place: the arithmetic under `spark_hash`.

Rules: `h` holds one running hash per row and is the seed of what comes next; every function updates it in place.
Byte strings are mixed by 4-byte words, then each left-over byte on its own as a *signed* word, which is Spark's
variant and not standard Murmur3.

Byte strings advance by steps over all rows that still have a word; rows are ordered by their number of words, so
those are always a prefix. The last few very long rows are finished in plain Python over words mixed beforehand:
the chain within a row cannot be vectorised, and a dozen NumPy calls a step for a handful of rows cost more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.record.layout import Spans, index_dtype

Words = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]

_FEW_ROWS = 32
_MAX_STEPS = (1 << 16) - 1
_CHUNK = 1 << 16
_C1, _C2, _M5 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593), np.uint32(0xE6546B64)
_F1, _F2, _FIVE = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35), np.uint32(5)


def hash_int(h: Words, words: Words) -> None:
    """Hash one 4-byte word per row."""
    k = np.multiply(words, _C1)
    scratch = np.empty_like(k)
    _premix(k, scratch)
    _mix(h, k, scratch)
    _finish(h, np.uint32(4), scratch)


def hash_long(h: Words, values: npt.NDArray[np.int64]) -> None:
    """Hash one 8-byte value per row: its low word, then its high word."""
    halves = values.view(np.uint32).reshape(-1, 2)
    k = np.multiply(halves[:, 0], _C1)
    scratch = np.empty_like(k)
    _premix(k, scratch)
    _mix(h, k, scratch)
    np.multiply(halves[:, 1], _C1, out=k)
    _premix(k, scratch)
    _mix(h, k, scratch)
    _finish(h, np.uint32(8), scratch)


def hash_bytes(h: Words, spans: Spans) -> None:
    """Hash one byte string per row."""
    data, positions, lengths = spans
    order, active = by_steps(lengths >> 2)
    hashes = h
    if order is not None:
        positions, lengths, hashes = positions[order], lengths[order], h[order]
    scratch = np.empty_like(hashes)
    done = _mix_words(hashes, data, positions, active, scratch)
    for row in np.flatnonzero(lengths >> 2 > done).tolist():
        left = (int(lengths[row]) >> 2) - done
        hashes[row] = _mix_long_row(int(hashes[row]), data, int(positions[row]), left)
        positions[row] += 4 * left
    _mix_tails(hashes, data, positions, lengths & 3)
    _finish(hashes, lengths.astype(np.uint32), scratch)
    if order is not None:
        h[order] = hashes


def by_steps(steps: Counts) -> tuple[Counts | None, list[int]]:
    """An order with the most steps first (None: they are equal), and for each step how many rows take it.

    Steps above 65,535 are not listed.
    """
    capped = np.minimum(steps, _MAX_STEPS)
    longest, shortest = int(capped.max(initial=0)), int(capped.min(initial=_MAX_STEPS))
    if longest <= shortest:
        return None, [len(steps)] * longest
    active = len(steps) - np.cumsum(np.bincount(capped))
    order = np.argsort((longest - capped).astype(index_dtype(longest + 1)), kind="stable")
    return order, active[:-1].tolist()


def _mix_words(h: Words, data: npt.NDArray[np.uint8], positions: Counts, active: list[int], scratch: Words) -> int:
    """Mix words while there are enough rows; positions move along. Returns how many steps were taken."""
    done = 0
    words = _unaligned_words(data)
    for count in active:
        if count < _FEW_ROWS:
            break
        k = words[positions[:count]]
        k *= _C1
        _premix(k, scratch[:count])
        _mix(h[:count], k, scratch[:count])
        positions[:count] += 4
        done += 1
    return done


def _unaligned_words(data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """The 4-byte word that starts at each byte."""
    return np.ndarray((max(len(data) - 3, 0),), "<u4", data, 0, (1,))


def _mix_long_row(h: int, data: npt.NDArray[np.uint8], position: int, words: int) -> int:
    for start in range(0, words, _CHUNK):
        k = np.frombuffer(data, "<u4", min(words - start, _CHUNK), position + 4 * start) * _C1
        _premix(k, np.empty_like(k))
        for word in k.tolist():
            h ^= word
            h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    return h


def _mix_tails(h: Words, data: npt.NDArray[np.uint8], positions: Counts, tails: Counts) -> None:
    for step in range(int(tails.max(initial=0))):
        rows = np.flatnonzero(tails > step)
        k = _TAIL[data[positions[rows] + step]]
        hashes = h[rows]
        _mix(hashes, k, np.empty_like(hashes))
        h[rows] = hashes


def _premix(k: Words, scratch: Words) -> None:
    """Second half of mixing a word that was multiplied by C1 already."""
    np.left_shift(k, 15, out=scratch)
    k >>= 17
    k |= scratch
    k *= _C2


def _mix(h: Words, k: Words, scratch: Words) -> None:
    h ^= k
    np.left_shift(h, 13, out=scratch)
    h >>= 19
    h |= scratch
    h *= _FIVE
    h += _M5


def _finish(h: Words, length: np.uint32 | Words, scratch: Words) -> None:
    h ^= length
    np.right_shift(h, 16, out=scratch)
    h ^= scratch
    h *= _F1
    np.right_shift(h, 13, out=scratch)
    h ^= scratch
    h *= _F2
    np.right_shift(h, 16, out=scratch)
    h ^= scratch


def _tail_table() -> Words:
    table = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int32).view(np.uint32) * _C1
    _premix(table, np.empty_like(table))
    return table


_TAIL = _tail_table()
"""The share of a left-over byte in the hash: there are only 256 of them."""
