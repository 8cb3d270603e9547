# SPDX-License-Identifier: Apache-2.0
"""The index of a finished hybrid partition, and ranges of subpartitions read by it.

Rules: the index is written when everything is stored, under a temporary name first, so where it is, the partition is
complete. It has a list of extents for each subpartition; equal lists, as broadcasting makes them, are there once.
A range is read subpartition by subpartition; its bytes are the record stream as it was written, so it needs no more
than its extents. `docs/file-formats.md` has the layout.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from penstock.partition.file_header import FileHeader, pack_footer, pack_header, read_footer, read_header
from penstock.partition.file_input import FileInput, FileOrigin
from penstock.partition.file_output import FileOutput
from penstock.partition.hybrid_items import Extent, end_of_stretch
from penstock.partition.stored import Stretch
from penstock.shuffle.events import EndOfPartition
from penstock.shuffle.ids import PartitionId

INDEX_MAGIC = b"PENSTHIX"
LAYOUT = "hybrid"
"""The name of the layout in the message that names a range."""

ENTRY = struct.Struct("<IIQQ")
"""Of an extent: tier, bytes, offset, checksum."""
TOTAL = struct.Struct("<QQQQQQ")
"""Of a subpartition: where its list begins, entries, their checksum; rows, bytes of payload, sum of checksums."""
FOOTER = struct.Struct("<QQ")
"""The place where the totals begin, and their checksum."""

_AHEAD = 16
"""Extents that the kernel is asked for ahead of reading."""


def write_index(
    path: Path, partition: PartitionId, subpartitions: Sequence[tuple[list[Extent], EndOfPartition]]
) -> int:
    """Write the index of these subpartitions; its bytes. PenstockError where it can't be stored."""
    output = FileOutput(path, partition)
    header = pack_header(INDEX_MAGIC, FileHeader(partition, None, len(subpartitions)))
    parts = [header]
    position = len(header)
    places: dict[bytes, int] = {}
    totals = []
    for extents, end in subpartitions:
        entries = b"".join([ENTRY.pack(each.tier, each.length, each.offset, each.checksum) for each in extents])
        if entries not in places:
            places[entries] = position
            parts.append(entries)
            position += len(entries)
        checksum = xxhash.xxh3_64_intdigest(entries)
        totals.append(TOTAL.pack(places[entries], len(extents), checksum, end.rows, end.bytes, end.checksum))
    body = b"".join(totals)
    output.append([*parts, body, pack_footer(FOOTER.pack(position, xxhash.xxh3_64_intdigest(body)), INDEX_MAGIC)])
    output.publish()
    return output.size


@dataclass(frozen=True, slots=True)
class HybridRange:
    """`count` subpartitions from `first` on, of a partition whose index and tiers are here."""

    index: str
    tiers: tuple[str, ...]
    first: int
    count: int
    origin: FileOrigin

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> HybridRange:
        """Inverse of `to_message`; raises KeyError, TypeError or ValueError on another shape."""
        tiers = tuple(str(path) for path in message["tiers"])
        origin = FileOrigin.from_wire(message["origin"])
        return cls(str(message["index"]), tiers, int(message["first"]), int(message["count"]), origin)

    def to_message(self) -> dict[str, Any]:
        """The message for a reader on the same host."""
        return {
            "layout": LAYOUT,
            "origin": self.origin.to_wire(),
            "index": self.index,
            "tiers": self.tiers,
            "first": self.first,
            "count": self.count,
        }

    @property
    def start(self) -> str:
        """The file that is read first."""
        return self.index

    def open(self) -> OpenHybridRange:
        """The range, open; PartitionLostError where the index is gone, IncompleteDataError where it is damaged."""
        return OpenHybridRange(self)


class OpenHybridRange:
    """A range that is read once, from its beginning."""

    prefix = 0

    def __init__(self, stored: HybridRange) -> None:
        self._extents: list[Extent] = []
        file = FileInput(Path(stored.index), stored.origin)
        header, _ = read_header(file, INDEX_MAGIC)
        (begin, checksum), end = read_footer(file, FOOTER, INDEX_MAGIC)
        totals = file.view[begin:end]
        if xxhash.xxh3_64_intdigest(totals) != checksum or len(totals) != TOTAL.size * header.subpartitions:
            raise file.incomplete("the checksum of its totals does not match")
        for number in range(stored.first, stored.first + stored.count):
            place, count, checksum, *_ = TOTAL.unpack_from(totals, TOTAL.size * number)
            entries = file.view[place : place + ENTRY.size * count]
            if xxhash.xxh3_64_intdigest(entries) != checksum:
                raise file.incomplete(f"the checksum of the list of subpartition {number} does not match")
            for tier, length, offset, digest in ENTRY.iter_unpack(entries):
                self._extents.append(Extent(tier, offset, length, digest))
        tiers = {extent.tier for extent in self._extents}
        self._files = {tier: FileInput(Path(stored.tiers[tier]), stored.origin) for tier in tiers}

    @property
    def stretches(self) -> list[Stretch]:
        """The parts of files that hold the range, in the order they are read."""
        found: list[Stretch] = []
        for begin, end in self._runs(sys.maxsize):
            (tier, offset, *_), last = self._extents[begin], self._extents[end - 1]
            found.append(Stretch(str(self._files[tier].path), offset, last.offset + last.length))
        return found

    def messages(self, together: int = 0) -> Iterator[memoryview]:
        """The range's bytes, checked, over the files' maps: those that lie together joined up to so many bytes.

        A reader that takes them extent by extent copies them; then their pages leave this process when the next is
        asked for.
        """
        asked = 0
        for begin, end in self._runs(together):
            while asked < min(end - 1 + _AHEAD, len(self._extents)):
                following = self._extents[asked]
                self._files[following.tier].will_need(following.offset, following.offset + following.length)
                asked += 1
            for extent in self._extents[begin:end]:
                self._check(extent)
            (tier, offset, *_), last = self._extents[begin], self._extents[end - 1]
            file, behind = self._files[tier], last.offset + last.length
            yield file.view[offset:behind]
            if not together:
                file.is_done_with(offset, behind)

    def _runs(self, most: int) -> Iterator[tuple[int, int]]:
        """The extents that lie together, as (first, after the last)."""
        begin = 0
        while begin < len(self._extents):
            end = end_of_stretch(self._extents, begin, most)
            yield begin, end
            begin = end

    def _check(self, extent: Extent) -> None:
        tier, offset, length, checksum = extent
        file = self._files[tier]
        if offset + length > file.size:
            raise file.incomplete(f"it ends at {file.size}, before {offset + length}")
        if xxhash.xxh3_64_intdigest(file.view[offset : offset + length]) != checksum:
            raise file.incomplete(f"the checksum of the extent at {offset} does not match")
