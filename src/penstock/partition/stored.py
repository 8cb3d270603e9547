# SPDX-License-Identifier: Apache-2.0
"""The words by which a reader is told what to read out of a partition's files: pieces, or a range by the index.

Of a partition that is still being written its environment names the pieces. One that is finished and stored has an
index, in which the reader finds those of its range by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.partition.extents import Extent, StoredPiece
from penstock.partition.file_input import FileOrigin
from penstock.partition.index import read_index


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows in the files of `folder`: those of the `pieces`; or, if there is a `count`, of so many subpartitions."""

    folder: str
    origin: FileOrigin
    pieces: tuple[StoredPiece, ...] = ()
    first: int = 0
    count: int = 0

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> StoredRows:
        """Inverse of `to_message`; raises KeyError, TypeError or ValueError on another shape."""
        pieces = tuple(StoredPiece(Extent(*fields), skip) for *fields, skip in message["pieces"])
        first, count = message["range"]
        return cls(str(message["folder"]), FileOrigin.from_wire(message["origin"]), pieces, int(first), int(count))

    def to_message(self) -> dict[str, Any]:
        """The message for a reader on the same host."""
        return {
            "folder": self.folder,
            "origin": self.origin.to_wire(),
            "pieces": [(*extent, skip) for extent, skip in self.pieces],
            "range": (self.first, self.count),
        }

    def find(self) -> tuple[StoredPiece, ...] | list[StoredPiece]:
        """The pieces, in order. It waits for a disk.

        PartitionLostError where the index is gone, IncompleteDataError where it is damaged.
        """
        return read_index(self.folder, self.first, self.count, self.origin) if self.count else self.pieces
