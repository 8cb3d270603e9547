# SPDX-License-Identifier: Apache-2.0
"""The index of a finished partition: the extents of each subpartition, whatever kind of partition it is.

Rules: the index is written when everything is stored, under a temporary name first, so where it is, the partition is
complete. It has a list of extents for each subpartition; equal lists, as broadcasting makes them, are there once.
A reader looks at the lists of its range and no others, and at the checksums over what it looks at.
`docs/file-formats.md` has the layout.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from operator import itemgetter
from pathlib import Path

import xxhash

from penstock.errors import IncompleteDataError, QuotaError
from penstock.partition.extents import BROADCAST, INDEX_NAME, Extent, StoredPiece
from penstock.partition.file_header import (
    INDEX_MAGIC,
    TAIL,
    FileHeader,
    damaged,
    header_size,
    pack_footer,
    pack_header,
    read_header,
)
from penstock.partition.file_input import FileOrigin, open_file, read_at, unreadable
from penstock.partition.file_output import FileOutput

ENTRY = struct.Struct("<IIQQ")
"""The entry of an extent: file, bytes, offset, checksum."""
PLACE = struct.Struct("<QQQ")
"""Of a subpartition: where its list begins, its extents, the list's checksum."""
FOOTER = struct.Struct("<QQ")
"""The place where the subpartitions' places begin, and their checksum."""

# A range of a thousand subpartitions has as many pieces: they are made without a line of Python for each.
_IN_ORDER = itemgetter(0, 2, 1, 3)
"""An entry in the order of an `Extent`."""
_EXTENT = partial(tuple.__new__, Extent)
_PIECE = partial(tuple.__new__, StoredPiece)


class ExtentLists:
    """The extents of each subpartition, packed as they will stand in the index: 24 bytes each."""

    __slots__ = ("_lists",)

    def __init__(self, subpartitions: int) -> None:
        self._lists = [bytearray() for _ in range(subpartitions)]

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self._lists)

    def add(self, target: int, file: int, offset: int, length: int, checksum: int) -> None:
        """The next extent of a subpartition, or of every one (`BROADCAST`)."""
        entry = ENTRY.pack(file, length, offset, checksum)
        if target != BROADCAST:
            self._lists[target] += entry
            return
        for each in self._lists:
            each.extend(entry)


def pack_extents(extents: Iterable[Extent]) -> bytes:
    """A list as it stands in the index."""
    return b"".join([ENTRY.pack(number, length, offset, checksum) for number, offset, length, checksum in extents])


def write_index(folder: Path, header: FileHeader, lists: Iterable[bytes], reserve: int = 0, opened: int = -1) -> int:
    """Write the index of these lists, one for each subpartition; returns its bytes.

    `opened` is its descriptor where another process has made the file. PenstockError where it can't be stored.
    """
    output = FileOutput(folder / INDEX_NAME, header.partition, reserve, opened)
    start = pack_header(INDEX_MAGIC, header)
    parts = [start]
    position = len(start)
    known: dict[bytes, int] = {}
    places = []
    for entries in lists:
        if entries not in known:
            known[entries] = position
            parts.append(entries)
            position += len(entries)
        places.append(PLACE.pack(known[entries], len(entries) // ENTRY.size, xxhash.xxh3_64_intdigest(entries)))
    body = b"".join(places)
    output.append([*parts, body, pack_footer(FOOTER.pack(position, xxhash.xxh3_64_intdigest(body)))])
    output.publish()
    return output.size


def read_index(folder: str, first: int, count: int, origin: FileOrigin, most: int = 0) -> list[StoredPiece]:
    """The pieces of these subpartitions, in the order in which they are to be read.

    That is subpartition by subpartition, or, where extents hold whole messages, as they lie in the files: a range is
    then read in long stretches. PartitionLostError where the index is gone, IncompleteDataError where it is damaged,
    QuotaError where these are more than `most`, if that is set.
    """
    path = f"{folder}/{INDEX_NAME}"
    descriptor = open_file(path, origin)
    try:
        size = os.fstat(descriptor).st_size
        return Index(_from_file(descriptor), size, path, origin).pieces(first, count, most)
    except OSError as error:
        raise unreadable(origin, path, error) from error
    finally:
        os.close(descriptor)


Read = Callable[[memoryview, int], int]
"""Fills a target with the bytes from an offset on; gives how many there were."""


def _from_file(descriptor: int) -> Read:
    return lambda target, offset: read_at(descriptor, target, offset)


def index_in(data: memoryview, path: str, origin: FileOrigin) -> Index:
    """An index that has come as bytes; IncompleteDataError where it is damaged."""

    def read(target: memoryview, offset: int) -> int:
        found = data[offset : offset + len(target)]
        target[: len(found)] = found
        return len(found)

    return Index(read, len(data), path, origin)


class Index:
    """An index of `size` bytes: what is looked at is read and checked. IncompleteDataError where it is damaged."""

    __slots__ = ("_begin", "_checksum", "_end", "_header", "_origin", "_path", "_read_into", "_size")

    def __init__(self, read: Read, size: int, path: str, origin: FileOrigin) -> None:
        self._read_into = read
        self._size = size
        self._path = path
        self._origin = origin
        header_end = header_size(origin.partition)
        self._header = read_header(self._read(0, min(size, header_end)), INDEX_MAGIC, origin, path)
        self._begin, self._checksum, self._end = self._footer()
        if self._begin < header_end or self._end - self._begin != PLACE.size * self._header.subpartitions:
            raise self._damaged("its places do not lie where they should")

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return self._header.subpartitions

    @property
    def entries(self) -> memoryview:
        """All lists, one after the other, without a look at their checksums."""
        return self._read(header_size(self._origin.partition), self._begin)

    def pieces(self, first: int, count: int, most: int = 0) -> list[StoredPiece]:
        """The pieces of a range; see `read_index`."""
        if most and self._header.subpartitions > most:
            raise QuotaError(f"{self._origin}: its index has places of {self._header.subpartitions:,} subpartitions")
        places = self._checked(self._begin, self._end, self._checksum, "places")
        wanted = list(PLACE.iter_unpack(places[PLACE.size * first : PLACE.size * (first + count)]))
        if most and (found := sum(entries for _, entries, _ in wanted)) > most:
            raise QuotaError(
                f"{self._origin}: subpartitions {first} to {first + count - 1} have {found:,} extents, and {most:,}"
                " are given out at once: give the exchange fewer subpartitions, or more of"
                " spark.penstock.blocking.sortBuffer"
            )
        extents: list[Extent] = []
        for number, (found, digest) in enumerate(self._lists(wanted), first):
            self._check(found, digest, f"list of subpartition {number}")
            extents += map(_EXTENT, map(_IN_ORDER, ENTRY.iter_unpack(found)))
        if self._header.is_whole and count > 1:
            extents.sort(key=itemgetter(0, 1))  # a subpartition's own extents are in this order anyway
        return list(map(_PIECE, zip(extents, repeat(0), strict=False)))

    def _lists(self, places: list[tuple[int, int, int]]) -> Iterator[tuple[memoryview, int]]:
        """The lists at these places, each with its checksum; those that lie one after the other are read at once."""
        number = 0
        while number < len(places):
            first, begin = number, places[number][0]
            end = begin
            while number < len(places) and (places[number][0] == end or not places[number][1]):
                end += ENTRY.size * places[number][1]
                number += 1
            found, at = self._read(begin, end), 0
            for _, entries, digest in places[first:number]:
                size = ENTRY.size * entries
                yield found[at : at + size], digest
                at += size

    def _footer(self) -> tuple[int, int, int]:
        """Begin and checksum of the places, and where they end."""
        end = self._size - FOOTER.size - TAIL.size
        if end < 0:
            raise self._damaged(f"it has {self._size} bytes, too few for its footer")
        tail = self._read(end, self._size)
        checksum, magic = TAIL.unpack_from(tail, FOOTER.size)
        if magic != INDEX_MAGIC:
            raise self._damaged(f"it does not end with {INDEX_MAGIC.decode()}: it was cut or overwritten")
        if checksum != xxhash.xxh3_64_intdigest(tail[: FOOTER.size]):
            raise self._damaged("the checksum of its footer does not match")
        begin, digest = FOOTER.unpack_from(tail)
        return begin, digest, end

    def _checked(self, begin: int, end: int, checksum: int, what: str) -> memoryview:
        found = self._read(begin, end)
        self._check(found, checksum, what)
        return found

    def _check(self, found: memoryview, checksum: int, what: str) -> None:
        if xxhash.xxh3_64_intdigest(found) != checksum:
            raise self._damaged(f"the checksum of its {what} does not match")

    def _read(self, begin: int, end: int) -> memoryview:
        if not 0 <= begin <= end <= self._size:
            raise self._damaged(f"it ends before {end}")  # what a service reads any task may have written
        target = memoryview(bytearray(end - begin))
        if self._read_into(target, begin) < len(target):
            raise self._damaged(f"it ends before {end}")
        return target

    def _damaged(self, what: str) -> IncompleteDataError:
        return damaged(self._origin, self._path, what)
