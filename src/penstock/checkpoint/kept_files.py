# SPDX-License-Identifier: Apache-2.0
"""Which files of a location are needed, as a sans-I/O core: complete checkpoints refer to files of older ones.

Rules
- A file is needed while a complete checkpoint that is kept consists of it, or refers to it. Checkpoints under way
  need no count: a task refers to a piece in each of its snapshots until it reads of it and never after that, so the
  newest complete checkpoint refers to all that a later one may.
- A folder loses its metadata with its checkpoint, and its files when no checkpoint refers to them any more: so each
  checkpoint that goes has its own folder looked at, and those that it referred to.
- A new owner counts anew, from the checkpoints that it keeps; whatever else lies there goes.
- Files of logs are counted alike. One that was begun before the newest complete checkpoint, and that none needs, will
  not be needed (`log_files`); of later ones that is unknown.
Memory: the names of files of the kept checkpoints.
"""

from __future__ import annotations

from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.stamps import Stamp


class KeptFiles:
    """The files that the complete checkpoints of one location need, by their paths below it."""

    def __init__(self) -> None:
        self._needs: dict[Stamp, frozenset[str]] = {}

    def keep(self, stamp: Stamp, metadata: CheckpointMetadata) -> None:
        """A checkpoint is complete."""
        parts = metadata.parts.values()
        self._needs[stamp] = frozenset(path for part in parts for path in (part.path, *part.referred))

    def drop(self, stamp: Stamp) -> list[Stamp]:
        """A checkpoint goes, complete or not; returns the folders to be looked at, its own first."""
        folders = {found for path in self._needs.pop(stamp, ()) if (found := folder_of(path)) is not None}
        return [stamp, *sorted(folders - self._needs.keys() - {stamp})]

    def drop_all_but(self, stamps: set[Stamp]) -> None:
        """Only these are kept from now on."""
        for stamp in self._needs.keys() - stamps:
            del self._needs[stamp]

    @property
    def newest(self) -> int:
        """The number of the newest complete checkpoint; 0: there is none."""
        return max((stamp.number for stamp in self._needs), default=0)

    def needed(self, folder: str) -> set[str]:
        """The names of the files in a folder that some kept checkpoint needs."""
        start = f"{folder}/"
        paths = frozenset().union(*self._needs.values())
        return {path.removeprefix(start) for path in paths if path.startswith(start)}


def folder_of(path: str) -> Stamp | None:
    """The checkpoint in whose folder a file lies."""
    return Stamp.of(path.partition("/")[0])
