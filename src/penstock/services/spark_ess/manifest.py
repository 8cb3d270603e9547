# SPDX-License-Identifier: Apache-2.0
"""The places of rows in a partition: the index that the service reads, and the manifest that our readers do. Pure.

    data = the data file of a sort-merge partition | manifest
    manifest = subpartitions u64 | checksum u64 of the totals | rows, bytes, checksum (u64) of each | its index
    index = begin and end of the manifest | begin of the first extent | end of each extent (i64, big)

Rules: an extent is one reduce partition of Spark's, numbered from `DATA_FROM` on in the order of the file, in which
they lie side by side; so neighbouring extents are one chunk. The manifest is number 0. The service looks at no entry
but the two of a chunk, so they need not ascend.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from penstock.partition.extents import Extent
from penstock.partition.file_header import damaged
from penstock.partition.file_input import FileOrigin
from penstock.partition.index import Index, index_in
from penstock.services.spark_ess.messages import Block
from penstock.services.spark_ess.places import DATA_FROM
from penstock.shuffle import EndOfPartition
from penstock.shuffle.sums import sum_of

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES = 4 << 20
"""So many bytes are asked for at once, or one extent, if that is larger."""

_HEAD = struct.Struct("<QQ")
_TOTAL = struct.Struct("<QQQ")
_ENTRY = np.dtype([("file", "<u4"), ("length", "<u4"), ("offset", "<u8"), ("checksum", "<u8")])

Offsets = npt.NDArray[np.int64]


class ExtentRun(NamedTuple):
    """Neighbouring extents, which are fetched as one chunk, each with the times that its rows are meant."""

    block: Block
    extents: list[tuple[Extent, int]]

    @property
    def begin(self) -> int:
        """The offset at which it begins in the file."""
        return self.extents[0][0].offset

    @property
    def size(self) -> int:
        """Its bytes."""
        last = self.extents[-1][0]
        return last.offset + last.length - self.begin


def packed(index: bytes, ends: Sequence[EndOfPartition]) -> bytes:
    """The manifest of a partition with this index, whose subpartitions hold so much."""
    totals = b"".join([_TOTAL.pack(end.rows, end.bytes, end.checksum) for end in ends])
    return _HEAD.pack(len(ends), xxhash.xxh3_64_intdigest(totals)) + totals + index


def offsets(index: Index) -> Offsets:
    """The offsets at which the extents begin, in the order of the file, and at which the last one ends."""
    entries = np.frombuffer(index.entries, _ENTRY)
    if not len(entries):
        return np.empty(0, np.int64)
    begins = np.unique(entries["offset"]).astype(np.int64)
    last = int((entries["offset"] + entries["length"]).max())
    return np.append(begins, last)


def service_index(places: Offsets, data_size: int, manifest_size: int) -> bytes:
    """The service's index of a data file of so many bytes, which the manifest follows."""
    manifest = np.array([data_size, data_size + manifest_size], np.int64)
    return np.concatenate((manifest, places)).astype(">i8").tobytes()


class Manifest:
    """The manifest of a partition, as a reader has got it. IncompleteDataError where it is damaged."""

    def __init__(self, data: pa.Buffer, number: int, path: str, where: FileOrigin) -> None:
        view = memoryview(data).cast("B")
        if len(view) < _HEAD.size:
            raise damaged(where, path, f"its manifest has {len(view)} bytes")
        count, checksum = _HEAD.unpack_from(view)
        begin = _HEAD.size + count * _TOTAL.size
        self._totals = view[_HEAD.size : begin]
        if begin > len(view) or xxhash.xxh3_64_intdigest(self._totals) != checksum:
            raise damaged(where, path, "the totals of its manifest do not match their checksum")
        self._number = number
        self._index = index_in(view[begin:], path, where)
        if self._index.subpartitions != count:
            raise damaged(where, path, f"its manifest is of {count} subpartitions, its index of another number")

    def end(self, first: int, count: int) -> EndOfPartition:
        """Rows, bytes and checksum of a range. ValueError for a range that is not there."""
        if first < 0 or count < 1 or first + count > self._index.subpartitions:
            raise ValueError(
                f"subpartitions {first} to {first + count - 1} were asked for, it has 0 to"
                f" {self._index.subpartitions - 1}"
            )
        totals = _TOTAL.iter_unpack(self._totals[first * _TOTAL.size : (first + count) * _TOTAL.size])
        return sum_of(EndOfPartition(*total) for total in totals)

    def pieces(self, first: int, count: int) -> Iterator[ExtentRun]:
        """The pieces that a range reads, in the order of the file; of a range that is there."""
        times: dict[Extent, int] = {}
        for piece in self._index.pieces(first, count):
            times[piece.extent] = times.get(piece.extent, 0) + 1
        wanted = list(times.items())
        places = offsets(self._index)
        numbers = np.searchsorted(places, np.array([extent.offset for extent, _ in wanted], np.int64)).tolist()
        taken = 0
        for at in range(1, len(wanted) + 1):
            if at == len(wanted) or self._ends(wanted[taken:at], wanted[at][0]):
                reduce = DATA_FROM + numbers[taken]
                yield ExtentRun(Block(self._number, reduce, reduce + at - taken), wanted[taken:at])
                taken = at

    @staticmethod
    def _ends(taken: Sequence[tuple[Extent, int]], following: Extent) -> bool:
        """Tell whether the following extent is no part of the same chunk."""
        first, last = taken[0][0], taken[-1][0]
        is_apart = following.offset != last.offset + last.length
        return is_apart or following.offset + following.length - first.offset > PIECE_BYTES
