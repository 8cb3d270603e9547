# SPDX-License-Identifier: Apache-2.0
"""One page of a worker's index, as a reader gets it: the sums of each writer, and runs of blocks to be read. Pure.

Blocks lie in packed arrays from the index's rows to the disk's reads: there is no object for each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.remote.blocks import BLOCK_BYTES
from penstock.remote.merged import BUCKET, Held, Spot
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

    writers: Mapping[int, Held]
    paths: Mapping[int, int]
    """The files, each with its number on the disk."""

    @property
    def rows(self) -> dict[int, int]:
        """The numbers of the rows of the index that have these, each with its writer."""
        found = {}
        for bucket, files in itertools.groupby(sorted(self.paths), lambda file: file // BUCKET):
            of_bucket = sum(1 << file % BUCKET for file in files)
            for writer, held in self.writers.items():
                if held.files >> bucket * BUCKET & of_bucket:
                    found[held.rows + bucket] = writer
        return found


class PackedRows(NamedTuple):
    """The rows of a commit, or of a page, in one piece: sums and places of all, one after the other."""

    sums: bytes
    places: bytes
    cuts: list[tuple[int, int, int, int, int]]
    """Of each bucket its number, and where its sums and its places begin, and how many bytes these are."""


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


def packed_rows(sums: bytes, places: bytes) -> PackedRows:
    """The rows of a commit: packed sums and places, as they came, by bucket."""
    sums, summed = _by_bucket(np.frombuffer(sums, _SUMS))
    places, placed = _by_bucket(np.frombuffer(places, _PLACES))
    nothing = 0, 0
    buckets = sorted(summed.keys() | placed.keys())
    return PackedRows(
        sums, places, [(each, *summed.get(each, nothing), *placed.get(each, nothing)) for each in buckets]
    )


def read_page(page: WantedPage, writers: Sequence[tuple[int, int]], packed: tuple[bytes, bytes]) -> ReadPage:
    """Read a page from the packed sums and places of its rows: of each row the writer, and the bytes of its sums."""
    chosen = np.array(sorted(page.paths), "<u4")
    sums = np.frombuffer(packed[0], _SUMS)
    of = np.repeat(
        np.array([writer for writer, _ in writers], "<u8"), [size // _SUMS.itemsize for _, size in writers]
    )
    fit = _among(sums["file"], chosen)
    sums, of = sums[fit], of[fit]
    order = np.argsort(of, kind="stable")
    sums, of = sums[order], of[order]
    firsts = np.flatnonzero(np.diff(of, prepend=~of[:1]))
    totals = np.zeros(len(firsts), _READ_SUMS)
    totals["writer"] = of[firsts]
    for name in ("rows", "bytes", "checksum"):
        totals[name] = np.add.reduceat(sums[name], firsts) if len(firsts) else 0
    places = np.frombuffer(packed[1], _PLACES)
    places = places[_among(places["file"], chosen)]
    places = places[np.lexsort((places["offset"], places["file"]))]
    return ReadPage(totals.tobytes(), page.paths, places, int(places["size"].sum(dtype="<u8")))


def _among(values: npt.NDArray[np.uint32], chosen: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Tell of each value whether it is one of these, in order; for few `np.isin` takes several times as long."""
    found: npt.NDArray[np.bool_] = np.searchsorted(chosen, values, "right") > np.searchsorted(chosen, values)
    return found


def _by_bucket(records: npt.NDArray[np.void]) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """The records by bucket, and where those of each begin, and their bytes."""
    buckets = records["file"].astype("i8") // BUCKET
    if (buckets[1:] < buckets[:-1]).any():
        order = np.argsort(buckets, kind="stable")
        records, buckets = records[order], buckets[order]
    begins = np.flatnonzero(np.diff(buckets, prepend=-1))
    ends = np.append(begins[1:], len(records)) * records.itemsize if len(begins) else begins
    begins, buckets = begins * records.itemsize, buckets[begins]
    found = zip(buckets.tolist(), begins.tolist(), (ends - begins).tolist(), strict=True)
    return records.tobytes(), {bucket: (begin, size) for bucket, begin, size in found}
