# SPDX-License-Identifier: Apache-2.0
"""Extents: the one form in which rows of a partition lie in files, whichever process wrote them.

Rules:

- An *extent* is a run of bytes of one subpartition's record stream (broadcast: of all), in one piece and under one
  checksum, which is compared before any of it is handed out. So an extent is as long as what is worth reading at
  once: `EXTENT_BYTES`, or one message where that is longer.
- The data files of a partition lie in its folder, each under its number. Its writers know the meaning of a number:
  the environment's file and the producing task's own (`DATA`, `OWN`), the one file of a sorted partition, or one for
  each subpartition. Readers need no more than folder and number.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BROADCAST = -1
"""The subpartition of what belongs to all."""
DATA, OWN = 0, 1
"""The files of a partition that is read while it is written: the environment's, and the producer's own."""
EXTENT_BYTES = 2 << 20
"""An extent is closed when it is so long: a reader maps and checks it at once."""
INDEX_NAME = "index"
"""The file that says where each subpartition's extents are."""


def data_name(number: int) -> str:
    """The name of a data file in its partition's folder."""
    return f"data.{number}"


class Extent(NamedTuple):
    """Bytes of a data file, and their xxh3_64."""

    file: int
    offset: int
    length: int
    checksum: int


class StoredPiece(NamedTuple):
    """The piece that a reader is to read: an extent, of which the first `skip` bytes are not for it."""

    extent: Extent
    skip: int = 0


def end_of_stretch(pieces: Sequence[StoredPiece], begin: int, most: int) -> int:
    """The index after the last piece that is read in one go with that at `begin`: up to `most` bytes of a file."""
    (number, offset, size, _), _ = pieces[begin]
    end = begin + 1
    while end < len(pieces):
        (following, at, length, _), skip = pieces[end]
        if following != number or at != offset + size or skip or size + length > most:
            break
        size += length
        end += 1
    return end
