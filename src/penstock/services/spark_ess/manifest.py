# SPDX-License-Identifier: Apache-2.0
"""The places of rows in a partition: the index that the service reads, and the manifest that our readers do. Pure.

    data = the file of a sort-merge partition | manifest
    manifest = "PENSTESS" | compression u64 | index of the sort-merge partition
    index = begin and end of the manifest | begin of the first region | end of each part of each region (i64, big)

Rules: a part is what one subpartition has in one region, and is one reduce partition of Spark's, numbered from
`DATA_FROM` on; so neighbouring parts of a region are one chunk. The manifest is number 0. The service looks at no
entry but the two of a chunk, so they need not ascend.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.partition.file_header import COMPRESSION_FLAGS
from penstock.partition.file_input import FileInput, FileOrigin
from penstock.partition.sort_merge_index import IndexReader
from penstock.services.spark_ess.messages import Block
from penstock.services.spark_ess.places import DATA_FROM
from penstock.shuffle import EndOfPartition

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES = 4 << 20
"""So much of a region is asked for at once, or one part of it, if that is larger."""

_HEAD = struct.Struct("<8sQ")
_MAGIC = b"PENSTESS"


class Piece(NamedTuple):
    """Neighbouring parts of a region, which are fetched as one chunk.

    `parts` are number, begin and end of each one in the file; each of its blocks is meant `times` times.
    """

    block: Block
    region: int
    parts: list[tuple[int, int, int]]
    times: int

    @property
    def begin(self) -> int:
        """The offset at which it begins in the file."""
        return self.parts[0][1]

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.parts[-1][2] - self.parts[0][1]


def packed(index: bytes, compression: str) -> bytes:
    """The manifest of a partition with this index of sort-merge."""
    return _HEAD.pack(_MAGIC, COMPRESSION_FLAGS[compression]) + index


def offsets(index: FileInput, manifest_size: int) -> bytes:
    """The service's index of a data file that the manifest follows."""
    reader = IndexReader(index)
    regions = list(reader.regions())
    begin = [reader.data_size, reader.data_size + manifest_size, *(region.begin for region in regions[:1])]
    found = [np.array(begin, np.int64), *(np.array(region.ends, np.int64) for region in regions)]
    return np.concatenate(found).astype(">i8").tobytes()


class Manifest:
    """The manifest of a partition, as a reader has got it. IncompleteDataError where it is damaged."""

    def __init__(self, data: pa.Buffer, number: int, path: Path, where: FileOrigin) -> None:
        whole = FileInput(path, where, data)
        if data.size < _HEAD.size:
            raise whole.incomplete(f"its manifest has {data.size} bytes")
        magic, flag = _HEAD.unpack_from(whole.view)
        compressions = [name for name, known in COMPRESSION_FLAGS.items() if known == flag]
        if magic != _MAGIC or not compressions:
            raise whole.incomplete("its manifest does not begin as one does")
        self.compression = compressions[0]
        self._number = number
        self._index = IndexReader(FileInput(path, where, data.slice(_HEAD.size)))

    def end(self, first: int, count: int) -> EndOfPartition:
        """Rows, bytes and checksum of a range. ValueError for a range that is not there."""
        return self._index.end(first, count)

    def pieces(self, first: int, count: int) -> Iterator[Piece]:
        """The pieces that a range reads, in the order of the file. ValueError for a range that is not there."""
        self._index.check_range(first, count)
        reduce = DATA_FROM
        for region, found in enumerate(self._index.regions()):
            parts = found.parts(first, count)
            if parts:
                begin = reduce + (0 if found.is_broadcast else bisect_left(found.numbers, first))
                yield from self._cut(begin, region, parts, count if found.is_broadcast else 1)
            reduce += len(found.ends)

    def _cut(self, reduce: int, region: int, parts: Sequence[tuple[int, int, int]], times: int) -> Iterator[Piece]:
        taken = 0
        for at in range(1, len(parts) + 1):
            if at == len(parts) or parts[at][2] - parts[taken][1] > PIECE_BYTES:
                block = Block(self._number, reduce + taken, reduce + at)
                yield Piece(block, region, list(parts[taken:at]), times)
                taken = at
