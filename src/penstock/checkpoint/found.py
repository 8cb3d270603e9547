# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that were found at a location, usable or not."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.stamps import Stamp


@dataclass(frozen=True, slots=True)
class Unusable:
    """A checkpoint that is there and can't be restored from, and why."""

    stamp: Stamp
    cause: str


@dataclass(frozen=True, slots=True)
class UsableCheckpoint:
    """A checkpoint that can be restored from."""

    stamp: Stamp
    metadata: CheckpointMetadata


@dataclass(frozen=True, slots=True)
class Found:
    """The beginning of a recovery: the newest good checkpoint, if any, and the newer ones that are not good.

    `kept` holds the newest ones that are good, newest first, as many as were asked for.
    """

    kept: tuple[UsableCheckpoint, ...] = ()
    unusable: tuple[Unusable, ...] = ()

    @property
    def stamp(self) -> Stamp | None:
        """Of the newest good one."""
        return self.kept[0].stamp if self.kept else None

    @property
    def metadata(self) -> CheckpointMetadata | None:
        """Of the newest good one."""
        return self.kept[0].metadata if self.kept else None
