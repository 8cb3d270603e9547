# SPDX-License-Identifier: Apache-2.0
"""The index of a sort-merge partition: where each subpartition's blocks lie in each region, and the sums.

    region = begin u64, subpartitions with data u32, flags u32, their numbers u32 each (padded to 8), the end of each
             one's blocks u64 each, checksum u64 of all that
    totals = rows, bytes, checksum sum (u64 each) per subpartition

Rules: offsets are those of the data file. Only subpartitions with data are listed, ascending, so a region of a few
rows costs a few bytes however many subpartitions there are. A broadcast region lists one, number 0, and belongs to
all. Everything is under a checksum: what was read from here may be trusted as offsets.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import xxhash

from penstock.partition.file_header import CHECKSUM, pack_footer, read_footer, read_header
from penstock.partition.file_input import FileInput
from penstock.shuffle import EndOfPartition
from penstock.shuffle.sums import Sums, sum_of

INDEX_MAGIC = b"PENSTIDX"
REGION = struct.Struct("<QII")
"""Begin in the data file, subpartitions with data, flags."""
TOTAL = struct.Struct("<QQQ")
"""Rows, bytes of payload, sum of the checksums modulo 2**64."""
FOOTER = struct.Struct("<QQQQ")
"""Regions, bytes of the data file, where the totals begin, checksum of the totals."""
BROADCAST = 1
"""Flag of a region that belongs to all subpartitions."""


@dataclass(slots=True)
class Region:
    """The blocks of one region: subpartition `numbers[i]` ends at `ends[i]`, where the next one begins."""

    begin: int
    is_broadcast: bool
    numbers: Sequence[int] = field(default_factory=list)
    ends: Sequence[int] = field(default_factory=list)

    def pack(self) -> bytes:
        """The region's entry in the index."""
        count = len(self.numbers)
        entry = REGION.pack(self.begin, count, BROADCAST * self.is_broadcast)
        entry += struct.pack(f"<{count}I{count % 2 * 4}x{count}Q", *self.numbers, *self.ends)
        return entry + CHECKSUM.pack(xxhash.xxh3_64_intdigest(entry))

    def parts(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """Number, begin and end of the subpartitions of a range that have data here; they lie side by side."""
        if self.is_broadcast:
            return [(0, self.begin, self.ends[0])]
        low, high = bisect_left(self.numbers, first), bisect_left(self.numbers, first + count)
        if low == high:
            return []
        ends = list(self.ends[low:high])
        begins = [self.ends[low - 1] if low else self.begin, *ends[:-1]]
        return list(zip(self.numbers[low:high], begins, ends, strict=True))


class Totals:
    """Rows, bytes and checksum sum of each subpartition, while they are counted."""

    __slots__ = ("_all", "_each")

    def __init__(self, subpartitions: int) -> None:
        self._each = [Sums() for _ in range(subpartitions)]
        self._all = Sums()

    def add(self, subpartition: int, rows: int, nbytes: int, checksum: int) -> None:
        """Count a block of one subpartition."""
        self._each[subpartition].add(rows, nbytes, checksum)

    def add_to_all(self, rows: int, nbytes: int, checksum: int) -> None:
        """Count a block that belongs to all."""
        self._all.add(rows, nbytes, checksum)

    def ends(self) -> tuple[EndOfPartition, ...]:
        """The sums of each subpartition."""
        to_all = self._all.end_of_partition()
        return tuple(sum_of((each.end_of_partition(), to_all)) for each in self._each)


def pack_end(regions: int, data_size: int, position: int, ends: Sequence[EndOfPartition]) -> list[bytes]:
    """Totals and footer of an index whose regions end at `position`."""
    totals = b"".join(TOTAL.pack(end.rows, end.bytes, end.checksum) for end in ends)
    footer = FOOTER.pack(regions, data_size, position, xxhash.xxh3_64_intdigest(totals))
    return [totals, pack_footer(footer, INDEX_MAGIC)]


class IndexReader:
    """A mapped index. IncompleteDataError, at once or from `regions`, unless it is what was written."""

    __slots__ = ("_file", "_first", "_totals", "data_size", "region_count", "subpartitions")

    def __init__(self, file: FileInput) -> None:
        self._file = file
        numbers, last = read_footer(file, FOOTER, INDEX_MAGIC)
        self.region_count, self.data_size, self._totals, checksum = numbers
        header, self._first = read_header(file, INDEX_MAGIC)
        self.subpartitions = header.subpartitions
        if self._first > self._totals or self._totals + self.subpartitions * TOTAL.size != last:
            raise file.incomplete("its totals do not lie where they should")
        if xxhash.xxh3_64_intdigest(file.view[self._totals : last]) != checksum:
            raise file.incomplete("the checksum of its totals does not match")

    def end(self, first: int, count: int) -> EndOfPartition:
        """The sums of a range of subpartitions. ValueError for a range that is not there."""
        self.check_range(first, count)
        begin = self._totals + first * TOTAL.size
        totals = TOTAL.iter_unpack(self._file.view[begin : begin + count * TOTAL.size])
        return sum_of(EndOfPartition(*total) for total in totals)

    def check_range(self, first: int, count: int) -> None:
        """ValueError unless the range has a subpartition and all of them exist."""
        if first < 0 or count < 1 or first + count > self.subpartitions:
            raise ValueError(
                f"{self._file.where}: subpartitions {first} to {first + count - 1} were asked for, "
                f"it has 0 to {self.subpartitions - 1}"
            )

    def regions(self) -> Iterator[Region]:
        """Every region in the order of the data file."""
        position = self._first
        for number in range(self.region_count):
            region, position = self._region(position, number)
            yield region
        if position != self._totals:
            raise self._file.incomplete("there is something behind its last region")

    def _region(self, position: int, number: int) -> tuple[Region, int]:
        view = self._file.view
        start = position + REGION.size
        if start > self._totals:
            raise self._file.incomplete(f"region {number} is missing")
        begin, count, flags = REGION.unpack_from(view, position)
        offsets = start + count * 4 + count % 2 * 4
        end = offsets + count * 8
        if end + CHECKSUM.size > self._totals:
            raise self._file.incomplete(f"region {number} reaches over the end")
        if xxhash.xxh3_64_intdigest(view[position:end]) != CHECKSUM.unpack_from(view, end)[0]:
            raise self._file.incomplete(f"the checksum of region {number} does not match")
        numbers, ends = view[start : start + count * 4].cast("I"), view[offsets:end].cast("Q")
        return Region(begin, bool(flags & BROADCAST), numbers, ends), end + CHECKSUM.size
