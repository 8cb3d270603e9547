# SPDX-License-Identifier: Apache-2.0
"""The file that a hybrid partition's writer stores in by itself: its readers find what is theirs lying together.

Rules:

- Long runs of bytes are written when they come, into a stretch of the file that is kept for their subpartition,
  while they are still in the processor's cache. Short ones are written side by side after the end, all with one
  call.
- Written bytes are known as extents: a stretch that is filled is one, and what is in it when `take` is called.
- A stretch that is not filled in the end leaves a hole, which takes no room on the disk.

Measured on 640 MB to 4 subpartitions against gathering 8 MB and writing them at once: 5 % of the whole job's CPU.
It waits for the disk; one call at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from penstock.partition.data_file import DataFile, Run
from penstock.partition.extents import EXTENT_BYTES, OWN, Extent
from penstock.partition.file_output import cut
from penstock.shuffle.ids import PartitionId

LONG = 128 << 10
"""Bytes of one subpartition that are worth a call of their own."""


class _Stretch:
    """The place for a subpartition's bytes, and its extent so far."""

    __slots__ = ("at", "begin", "digest", "end")

    def __init__(self, begin: int, end: int) -> None:
        self.begin = self.at = begin
        self.end = end
        self.digest = xxhash.xxh3_64()

    def take(self) -> Extent | None:
        """The bytes that were written since the last extent, as one."""
        if self.at == self.begin:
            return None
        extent = Extent(OWN, self.begin, self.at - self.begin, int(self.digest.intdigest()))
        self.begin = self.at
        self.digest = xxhash.xxh3_64()
        return extent


class StretchedFile:
    """One writer's file, made with the first bytes, in the folder that `folder` gives then."""

    def __init__(
        self, partition: PartitionId, subpartitions: int, folder: Callable[[], Path], reserve: int = 0
    ) -> None:
        self._file = DataFile(partition, subpartitions, folder, reserve, OWN)
        self._stretches: dict[int, _Stretch] = {}
        self._extents: list[tuple[int, Extent]] = []

    def write(self, runs: Sequence[tuple[int, Run]]) -> None:
        """Store bytes of these subpartitions, each of them once, after those that it has.

        PenstockError where it can't.
        """
        short = []
        for target, run in runs:
            length = sum(map(len, run))
            if length >= LONG:
                self._fill(target, run)
            elif length:
                self._close(target)
                short.append((target, run))
        if short:
            extents = self._file.write([run for _, run in short])
            self._extents += [(target, extent) for (target, _), extent in zip(short, extents, strict=True)]

    def take(self) -> list[tuple[int, Extent]]:
        """The subpartitions and extents of what was written since the last call; in order for each of them."""
        for target in self._stretches:
            self._close(target)
        extents, self._extents = self._extents, []
        return extents

    def close(self) -> None:
        """Nothing more is written; idempotent."""
        self._file.close()

    def remove(self) -> None:
        """Give it up; idempotent."""
        self._file.remove()

    def _fill(self, target: int, run: Run) -> None:
        output = self._file.output
        left = list(run)
        while left:
            stretch = self._stretches.get(target)
            if stretch is None or stretch.at == stretch.end:
                self._close(target)
                begin = output.claim(EXTENT_BYTES)
                stretch = self._stretches[target] = _Stretch(begin, begin + EXTENT_BYTES)
            parts, left = cut(left, stretch.end - stretch.at)
            output.write(parts, stretch.at)
            for part in parts:
                stretch.digest.update(part)
                stretch.at += len(part)

    def _close(self, target: int) -> None:
        """Begin another extent for this subpartition's next bytes."""
        stretch = self._stretches.get(target)
        extent = None if stretch is None else stretch.take()
        if extent is not None:
            self._extents.append((target, extent))
