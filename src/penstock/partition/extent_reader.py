# SPDX-License-Identifier: Apache-2.0
"""Reads extents out of a partition's files, each checked before its bytes are given out: the one reader of them all.

Rules:

- Extents that lie one after the other are read together, up to `TOGETHER` bytes: from `MAPPED` bytes on over a map,
  less into memory of their own. Either stays as it is as long as a view of it lives, also when the reader is closed
  and the files are gone.
- Short extents come in views of less than `MAPPED` bytes, so what is checked is still in the cache of the processor
  when it is decoded.
- Of a file there is one map: one of a few MiB, at any offset, has small pages, which cost as a read does. Its pages
  are given back for a whole read at once: to give back a part of a large page splits it into small ones.
- The kernel is asked for the next `LOOK_AHEAD` bytes while a stretch is being looked at.
- A file is opened with the first read, or by `open`, and its header is compared: another partition's file, or
  another attempt's, is never read. It stays open until `close`, so what has been begun is read to its end although
  the partition's files are removed meanwhile. Beyond `OPEN_FILES` the one that was opened first is closed again: a
  range of a partition with a file for each subpartition looks at each file once.
- No file is a PartitionLostError; other bytes than were written are an IncompleteDataError; both name partition,
  attempt, host and file.

- The pages of a map are there before they are looked at. A disk that fails, or a file that is cut, is an error then,
  where a look would end the process (SIGBUS).

It waits for the disk: not on a loop. One thread at a time. Limits: what no reader asks for is not checked. A file
must not be cut below views that were given out, and pages of theirs that the kernel drops must still be on the disk
(SIGBUS): partitions' files only grow, and are unlinked, which leaves a map intact.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType

import xxhash

from penstock.errors import IncompleteDataError
from penstock.machine.disk_work import DISKS
from penstock.machine.pages import bring_in
from penstock.partition.extents import Extent, StoredPiece, data_name, end_of_stretch
from penstock.partition.file_header import DATA_MAGIC, damaged, header_size, read_header
from penstock.partition.file_input import FileOrigin, open_file, read_at, unreadable

TOGETHER = 4 << 20
"""Bytes of one read, where extents lie together."""
MAPPED = 256 << 10
"""From so many bytes on a read is mapped, and an extent is long."""
LOOK_AHEAD = 4 << 20
"""Bytes that the kernel is asked for before they are read."""
OPEN_FILES = 16
"""Files that one reader has open at most."""
POPULATE_READ = 22
"""MADVPOPULATE_READ, which Linux has since 5.14 and Python has no name for: fault pages in, or say why not."""


class ExtentReader:
    """One reader of the data files in a partition's folder."""

    __slots__ = ("_descriptors", "_maps", "folder", "origin")

    def __init__(self, folder: str, origin: FileOrigin) -> None:
        self.folder = folder
        self.origin = origin
        self._descriptors: dict[int, int] = {}
        self._maps: dict[int, mmap.mmap] = {}

    def __enter__(self) -> ExtentReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def path(self, number: int) -> str:
        """The path of a data file."""
        return f"{self.folder}/{data_name(number)}"

    def open(self, number: int) -> int:
        """Open a file, if it is not; PartitionLostError where it is gone, IncompleteDataError if it is another's."""
        descriptor = self._descriptors.get(number, -1)
        if descriptor >= 0:
            return descriptor
        path = self.path(number)
        descriptor = self._descriptors[number] = open_file(path, self.origin)
        try:
            head = os.pread(descriptor, header_size(self.origin.partition), 0)
        except OSError as error:
            raise unreadable(self.origin, path, error) from error
        read_header(head, DATA_MAGIC, self.origin, path)
        if len(self._descriptors) > OPEN_FILES:
            self._close(next(iter(self._descriptors)))
        return descriptor

    def read(self, pieces: Sequence[StoredPiece], together: int = TOGETHER) -> Iterator[memoryview]:
        """The pieces' bytes, one after the other, in views that are not written to.

        No more than `together` are read at once: with less than `MAPPED`, only what is longer is mapped.
        """
        waiting: deque[tuple[int, int]] = deque()
        ahead = 0
        for following in _stretches(pieces, together):
            ahead += self._will_need(pieces, *following)
            waiting.append(following)
            while ahead >= LOOK_AHEAD and len(waiting) > 1:
                stretch = waiting.popleft()
                yield from self._read_stretch(pieces, *stretch)
                ahead -= self._is_done_with(pieces, *stretch)
        for stretch in waiting:
            yield from self._read_stretch(pieces, *stretch)
            self._is_done_with(pieces, *stretch)

    def close(self) -> None:
        """Close the files; idempotent. A map goes with the last thing that lies over it."""
        for number in list(self._descriptors):
            self._close(number)

    def _close(self, number: int) -> None:
        os.close(self._descriptors.pop(number))
        self._maps.pop(number, None)

    def _will_need(self, pieces: Sequence[StoredPiece], begin: int, end: int) -> int:
        """The bytes of a stretch that is read soon: the kernel fetches them now."""
        first, last = pieces[begin].extent, pieces[end - 1].extent
        size = last.offset + last.length - first.offset
        with suppress(OSError):  # advice, not a need
            os.posix_fadvise(self.open(first.file), first.offset, size, os.POSIX_FADV_WILLNEED)
        return size

    def _read_stretch(self, pieces: Sequence[StoredPiece], begin: int, end: int) -> Iterator[memoryview]:
        first, last = pieces[begin].extent, pieces[end - 1].extent
        path, start, size = self.path(first.file), first.offset, last.offset + last.length - first.offset
        began = time.perf_counter()
        try:
            whole = self._mapped(first, size) if size >= MAPPED else self._copied(first, size)
        except OSError as error:
            raise unreadable(self.origin, path, error) from error
        for at, following in _views(pieces, begin, end):
            position = given = pieces[at].extent.offset - start
            for number in range(at, following):
                _, offset, length, checksum = pieces[number].extent
                if xxhash.xxh3_64_intdigest(whole[position : position + length]) != checksum:
                    raise self._damaged(first.file, f"the checksum of the extent at {offset} does not match")
                position += length
            DISKS.has_read(path, position - given, time.perf_counter() - began)
            yield whole[given + pieces[at].skip : position]
            began = time.perf_counter()

    def _mapped(self, first: Extent, size: int) -> memoryview:
        number, begin, end = first.file, first.offset, first.offset + size
        found = self._maps.get(number)
        if found is None or len(found) < end:  # it may have grown since
            descriptor = self.open(number)
            there = os.fstat(descriptor).st_size
            if there < end:
                raise self._damaged(number, f"it ends at {there}, before {end}")
            found = self._maps[number] = mmap.mmap(descriptor, there, access=mmap.ACCESS_READ)
        bring_in(found, self.open(number), begin, end)
        return memoryview(found)[begin:end]

    def _is_done_with(self, pieces: Sequence[StoredPiece], begin: int, end: int) -> int:
        """The bytes of a stretch that was read: their pages leave this process, not the cache, and stay readable."""
        first, last = pieces[begin].extent, pieces[end - 1].extent
        behind = last.offset + last.length
        found = self._maps.get(first.file)
        start, stop = -(-first.offset // mmap.PAGESIZE) * mmap.PAGESIZE, behind // mmap.PAGESIZE * mmap.PAGESIZE
        if found is not None and start < stop <= len(found):
            with suppress(OSError):  # advice, not a need
                found.madvise(mmap.MADV_DONTNEED, start, stop - start)
        return behind - first.offset

    def _copied(self, first: Extent, size: int) -> memoryview:
        target = memoryview(bytearray(size))
        found = read_at(self.open(first.file), target, first.offset)
        if found < size:
            raise self._damaged(first.file, f"it ends at {first.offset + found}, before {first.offset + size}")
        return target

    def _damaged(self, number: int, what: str) -> IncompleteDataError:
        return damaged(self.origin, self.path(number), what)


def _stretches(pieces: Sequence[StoredPiece], most: int) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < len(pieces):
        end = end_of_stretch(pieces, begin, most)
        yield begin, end
        begin = end


def _views(pieces: Sequence[StoredPiece], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a stretch that are given out at once: long extents together, and short ones up to `MAPPED`."""
    first = begin
    size = pieces[begin].extent.length
    for number in range(begin + 1, end):
        length = pieces[number].extent.length
        if size < MAPPED <= size + length:
            yield first, number
            first, size = number, 0
        size += length
    yield first, end
