# SPDX-License-Identifier: Apache-2.0
"""Where a streaming query keeps its checkpoints, as its driver uses that: claims it, commits to it, clears it up.

All calls block on the file system. `claim` comes first, on the thread that starts the query, so that whatever is
wrong with the location is raised there; the others are those of one thread of the JobMaster.
"""

from __future__ import annotations

import logging
import time
import warnings

from penstock.checkpoint.kept_files import folder_of
from penstock.checkpoint.metadata import CheckpointMetadata, pack_part, unpack_part
from penstock.checkpoint.ownership import Stamp
from penstock.checkpoint.storage import CheckpointStorage
from penstock.graph.restoring import refuse_other_plan
from penstock.graph.streaming import KEY_GROUP_HASH, QueryBeginning, SavedParts, StreamingOptions
from penstock.shuffle.errors import PlanError

_LOG = logging.getLogger(__name__)


class QueryStorage:
    """The checkpoints of one query."""

    def __init__(self, options: StreamingOptions) -> None:
        self.beginning = QueryBeginning()
        """What the query goes on from, once the location is claimed."""
        self._options = options
        self._storage = CheckpointStorage(options.location)
        self._stamps: dict[int, Stamp] = {}
        """Of the complete checkpoints that are kept."""

    def claim(self, vertices: dict[str, int]) -> None:
        """Take the location over; `vertices` are those of the plan, with their parallelism, by uid.

        Raises PlanError where the checkpoint there is of another plan, CheckpointError or OSError where the location
        can't be used, or none of its checkpoints. A checkpoint that is damaged is named in a warning, and the one
        before it is taken.
        """
        found = self._storage.claim(self._retained)
        for unusable in found.unusable:
            text = f"checkpoint {unusable.stamp} can't be restored from, an older one is taken: {unusable.cause}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
            _LOG.warning(text)
        kept = tuple(_saved(each.metadata) for each in found.kept)
        saved = kept[0] if kept else None
        if saved is not None and found.metadata is not None:
            self._refuse_other_plan(saved, found.metadata, vertices)
        self._stamps.update((each.stamp.number, each.stamp) for each in found.kept)
        self._clear()
        self.beginning = QueryBeginning(self._storage.stamp(0).epoch, saved, kept[1:])

    def store(self, saved: SavedParts) -> None:
        """Make a checkpoint complete; raises FencedError where another driver has taken over, or OSError."""
        parts = {name: unpack_part(handle) for name, handle in saved.parts.items()}
        metadata = CheckpointMetadata(
            saved.checkpoint,
            time.time(),
            parts,
            tuple(sorted(saved.finished)),
            dict(saved.parallelism),
            self._options.max_parallelism,
            KEY_GROUP_HASH,
            saved.seconds,
            saved.figures,
        )
        self._stamps[saved.checkpoint] = self._storage.commit(metadata)

    def discard(self, checkpoint: int) -> None:
        """Remove a checkpoint."""
        stamp = self._stamps.pop(checkpoint, self._storage.stamp(checkpoint))
        self._storage.discard(stamp)

    def discard_part(self, handle: bytes) -> None:
        """Remove what came too late for its checkpoint, and with it what is left of that."""
        stamp = folder_of(unpack_part(handle).path)
        if stamp is not None and stamp not in self._stamps.values():
            self._storage.discard(stamp)

    def discard_logs(self, before: int) -> None:
        """Remove what attempts that are over have logged, behind checkpoints before this one, for nothing."""
        self._storage.discard_logs(before)

    def end(self) -> None:
        """The query is over: remove what of its logs no kept checkpoint needs; raises FencedError or OSError.

        Its last checkpoint may have become complete when nobody was left to say that an older one is to go.
        """
        for checkpoint in sorted(self._stamps)[: -self._retained]:
            self.discard(checkpoint)
        self._storage.end()

    @property
    def _retained(self) -> int:
        return max(1, self._options.retained)

    def _clear(self) -> None:
        try:
            self._storage.sweep(self._stamps.values())
        except OSError as error:
            _LOG.warning("old checkpoints at %s could not be removed: %s", self._options.location, error)

    def _refuse_other_plan(self, saved: SavedParts, metadata: CheckpointMetadata, stages: dict[str, int]) -> None:
        where = f"the checkpoint at {self._options.location}"
        if metadata.hash != KEY_GROUP_HASH:
            raise PlanError(f"{where} has keys by {metadata.hash}, this query by {KEY_GROUP_HASH}: it can't go on")
        groups = (metadata.max_parallelism, self._options.max_parallelism)
        refuse_other_plan(saved, groups, stages, where)


def _saved(metadata: CheckpointMetadata) -> SavedParts:
    parts = {name: pack_part(handle) for name, handle in metadata.parts.items()}
    widths = dict(metadata.parallelism)
    return SavedParts(metadata.number, parts, frozenset(metadata.finished), widths, is_logged=metadata.is_logged)
