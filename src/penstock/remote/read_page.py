# SPDX-License-Identifier: Apache-2.0
"""One page of a worker's index, as a reader gets it: the sums of each writer, and runs of blocks to be read. Pure.

Blocks lie in packed arrays from the index's rows to the disk's reads: there is no object for each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import IncompleteDataError
from penstock.remote.blocks import BLOCK_BYTES
from penstock.remote.merged import BUCKET, Spot
from penstock.remote.wire import READ_SUM

RUN_BYTES: Final = BLOCK_BYTES
_PLACES = np.dtype([("file", "<u4"), ("offset", "<u8"), ("size", "<u4")])
"""`merged.PLACE`."""
_SUMS = np.dtype([("file", "<u4"), ("rows", "<u8"), ("bytes", "<u8"), ("checksum", "<u8")])
"""`wire.SUM`."""
_READ_SUMS = np.dtype([("writer", "<u8"), ("rows", "<u8"), ("bytes", "<u8"), ("checksum", "<u8")])
assert _READ_SUMS.itemsize == READ_SUM.size  # noqa: S101


class WantedPage(NamedTuple):
    """The writers and files of a dataset that a reader wants."""

    application: str
    dataset: str
    writers: Mapping[int, int]
    """Each with a bit for each file that has blocks of it."""
    paths: Mapping[int, int]
    """The files, each with its number on the disk."""


class Row(NamedTuple):
    """The part of one writer in one bucket of files."""

    bucket: int
    writer: int
    sums: bytes
    places: bytes


@dataclass(frozen=True, slots=True)
class ReadPage:
    """The sums of the writers, packed (`READ_SUM`), and where the blocks lie, by file and offset."""

    sums: bytes
    paths: Mapping[int, int]
    """The number on the disk of each file."""
    places: npt.NDArray[np.void]
    size: int
    """Bytes."""

    def runs(self) -> Iterator[Spot]:
        """The blocks, in runs of neighbours that are read at once."""
        files, offsets, sizes = (self.places[name] for name in ("file", "offset", "size"))
        ends = offsets + sizes
        is_apart = (files[1:] != files[:-1]) | (offsets[1:] != ends[:-1])
        stretches = [0, *(np.flatnonzero(is_apart) + 1).tolist(), len(files)] if len(files) else []
        for begin, end in itertools.pairwise(stretches):
            path = self.paths[int(files[begin])]
            while begin < end:
                offset = int(offsets[begin])
                past = begin + max(1, int(np.searchsorted(ends[begin:end], offset + RUN_BYTES, "right")))
                yield Spot(path, offset, int(ends[past - 1]) - offset)
                begin = past  # noqa: PLW2901 - the rest of the stretch


def buckets_of(files: Iterable[int]) -> list[int]:
    """The buckets in which files are, each once."""
    return sorted({file // BUCKET for file in files})


def bucket_rows(sums: bytes, places: bytes) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """The part of a writer in each bucket: packed sums and places, as they came."""
    theirs = _by_bucket(np.frombuffer(places, _PLACES))
    summed = _by_bucket(np.frombuffer(sums, _SUMS))
    for bucket in sorted(theirs.keys() | summed.keys()):
        yield bucket, (summed.get(bucket, b""), theirs.get(bucket, b""))


def read_page(rows: Sequence[Row], page: WantedPage) -> ReadPage:
    """Read a page from the rows of its writers and buckets; IncompleteDataError where one is missing."""
    files = sorted(page.paths)
    there = {(row.bucket, row.writer) for row in rows}
    wanted = sum(1 << file for file in files)
    for bucket in buckets_of(files):
        of_bucket = wanted & (1 << BUCKET) - 1 << bucket * BUCKET
        for writer, held in page.writers.items():
            if held & of_bucket and (bucket, writer) not in there:
                raise IncompleteDataError(f"the index has lost blocks of writer {writer:x}")
    chosen = np.array(files, "<u4")
    sums = np.frombuffer(b"".join(row.sums for row in rows), _SUMS)
    counts = [len(row.sums) // _SUMS.itemsize for row in rows]
    of = np.repeat(np.array([row.writer for row in rows], "<u8"), counts)
    fit = np.isin(sums["file"], chosen)
    sums, of = sums[fit], of[fit]
    order = np.argsort(of, kind="stable")
    sums, of = sums[order], of[order]
    firsts = np.flatnonzero(np.diff(of, prepend=~of[:1]))
    totals = np.zeros(len(firsts), _READ_SUMS)
    totals["writer"] = of[firsts]
    for name in ("rows", "bytes", "checksum"):
        totals[name] = np.add.reduceat(sums[name], firsts) if len(firsts) else 0
    places = np.frombuffer(b"".join(row.places for row in rows), _PLACES)
    places = places[np.isin(places["file"], chosen)]
    places = places[np.lexsort((places["offset"], places["file"]))]
    return ReadPage(totals.tobytes(), page.paths, places, int(places["size"].sum(dtype="<u8")))


def _by_bucket(records: npt.NDArray[np.void]) -> dict[int, bytes]:
    if not len(records):
        return {}
    buckets = records["file"] // BUCKET
    order = np.argsort(buckets, kind="stable")
    records, buckets = records[order], buckets[order]
    begins = np.flatnonzero(np.diff(buckets.astype("i8"), prepend=-1))
    return {
        int(buckets[begin]): records[begin:end].tobytes()
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(records)], strict=True)
    }
