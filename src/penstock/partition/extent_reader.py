# SPDX-License-Identifier: Apache-2.0
"""Reads extents out of a hybrid partition's storage, each checked before its bytes are given out.

Rules: extents that lie one after the other are read together, up to `TOGETHER` bytes. Long stretches are mapped,
short ones read into memory of their own, because a process may have only so many maps; either stays as it is as long
as somebody looks at it. A file is opened by `open` or with the first read and stays open until `close`, so what has
been begun is read to its end although the partition's files are removed meanwhile. No file is a PartitionLostError;
other bytes than were written are an IncompleteDataError; both name partition, attempt, host and file. It waits for
the disk: not on a loop. One thread at a time. Limit: a file must not be cut while it is read (SIGBUS); partitions'
files only grow, and are unlinked, which leaves a map intact.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from types import TracebackType

import xxhash

from penstock.partition.file_input import FileOrigin
from penstock.partition.hybrid_items import Extent, StoredPiece, end_of_stretch
from penstock.shuffle.errors import IncompleteDataError, PartitionLostError

TOGETHER = 4 << 20
"""Bytes of one read, where extents lie together."""
MAPPED = 256 << 10
"""From so many bytes on a stretch is mapped."""


class ExtentReader:
    """One reader of a partition's tiers, of which `paths` are the addresses."""

    __slots__ = ("_descriptors", "origin", "paths")

    def __init__(self, paths: Sequence[str], origin: FileOrigin) -> None:
        self.paths = tuple(paths)
        self.origin = origin
        self._descriptors: dict[int, int] = {}

    def __enter__(self) -> ExtentReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, tier: int) -> int:
        """Open a tier's file, if it is not open; PartitionLostError where it is gone."""
        descriptor = self._descriptors.get(tier, -1)
        if descriptor >= 0:
            return descriptor
        path = self.paths[tier]
        try:
            descriptor = self._descriptors[tier] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise PartitionLostError(f"{self.origin}: its file {path} is gone") from error
        except OSError as error:
            raise self._unreadable(tier, error) from error
        return descriptor

    def read(self, pieces: Sequence[StoredPiece]) -> Iterator[memoryview]:
        """The pieces' bytes, one after the other, those that lie together in one view. Nobody writes to them."""
        extents = [piece.extent for piece in pieces]
        begin = 0
        while begin < len(pieces):
            end = end_of_stretch(extents, begin, TOGETHER)
            end = next((at for at in range(begin + 1, end) if pieces[at].skip), end)
            yield self._read_run(pieces[begin:end])
            begin = end

    def close(self) -> None:
        """Close the files; idempotent."""
        descriptors, self._descriptors = self._descriptors, {}
        for descriptor in descriptors.values():
            os.close(descriptor)

    def _read_run(self, run: Sequence[StoredPiece]) -> memoryview:
        first = run[0].extent
        size = sum(piece.extent.length for piece in run)
        view = self._mapped(first, size) if size >= MAPPED else self._copied(first, size)
        position = 0
        for (_, offset, length, checksum), _ in run:
            if xxhash.xxh3_64_intdigest(view[position : position + length]) != checksum:
                raise self._damaged(first.tier, f"the checksum of the extent at {offset} does not match")
            position += length
        return view[run[0].skip :]

    def _mapped(self, first: Extent, size: int) -> memoryview:
        descriptor = self.open(first.tier)
        end = os.fstat(descriptor).st_size
        if end < first.offset + size:
            raise self._damaged(first.tier, f"it ends at {end}, before {first.offset + size}")
        skip = first.offset % mmap.ALLOCATIONGRANULARITY
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        try:
            found = mmap.mmap(descriptor, skip + size, flags, mmap.PROT_READ, offset=first.offset - skip)
        except OSError as error:
            raise self._unreadable(first.tier, error) from error
        return memoryview(found)[skip:]

    def _copied(self, first: Extent, size: int) -> memoryview:
        target = memoryview(bytearray(size))
        self._fill(target, self.open(first.tier), first.tier, first.offset)
        return target

    def _fill(self, target: memoryview, descriptor: int, tier: int, offset: int) -> None:
        done = 0
        while done < len(target):
            try:
                count = os.preadv(descriptor, [target[done:]], offset + done)
            except OSError as error:
                raise self._unreadable(tier, error) from error
            if not count:
                raise self._damaged(tier, f"it ends at {offset + done}, before {offset + len(target)}")
            done += count

    def _unreadable(self, tier: int, error: OSError) -> PartitionLostError:
        return PartitionLostError(f"{self.origin}: its file {self.paths[tier]} cannot be read: {error}")

    def _damaged(self, tier: int, what: str) -> IncompleteDataError:
        return IncompleteDataError(
            f"{self.origin}: file {self.paths[tier]} is damaged: {what}. The partition must be produced again."
        )
