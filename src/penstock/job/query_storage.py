# SPDX-License-Identifier: Apache-2.0
"""The place of a streaming query's checkpoints, as its driver uses it: claims it, commits to it, clears it up.

All calls block on the file system. `look` and `claim` come first, on the thread that starts the query, so that
whatever is wrong with the location is raised there, and before another query has lost it. The others are those of one
thread of the JobMaster.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from penstock.checkpoint.errors import CheckpointError, UncertainCheckpointError
from penstock.checkpoint.first_positions import First, FirstPositions
from penstock.checkpoint.found import Found, UsableCheckpoint
from penstock.checkpoint.kept_files import folder_of
from penstock.checkpoint.metadata import CheckpointMetadata, PartHandle, pack_part, unpack_part
from penstock.checkpoint.patience import FEW, patiently
from penstock.checkpoint.running import RunningSign
from penstock.checkpoint.savepoints import SavepointFolder, copied
from penstock.checkpoint.stamps import Stamp
from penstock.checkpoint.storage import CheckpointStorage, PartStorage
from penstock.errors import PlanError
from penstock.graph.job_graph import JobGraph
from penstock.graph.restoring import refuse_finished, refuse_other_plan, refuse_other_sources
from penstock.graph.streaming import (
    KEY_GROUP_HASH,
    QueryBeginning,
    SavedParts,
    SourceReads,
    StreamingOptions,
    part_name,
    vertex_of_part,
)
from penstock.job.kept_checkpoints import KeptCheckpoints

_LOG = logging.getLogger(__name__)


class SavedStates:
    """The states that the stages of a query stored, in the checkpoint that it is to go on from."""

    def __init__(self, storage: PartStorage, metadata: CheckpointMetadata, *, is_savepoint: bool = False) -> None:
        self._storage = storage
        self._parts = metadata.parts
        self.is_savepoint = is_savepoint
        """True if the query is to begin with them."""

    def names(self, uid: str) -> set[str]:
        """The chunks that subtasks of a stage stored."""
        return {chunk.name for part in self._of(uid) for chunk in part.chunks}

    def read(self, uid: str, chunk: str) -> list[bytes]:
        """The bytes that the subtasks of a stage stored under this name; raises CorruptCheckpointError or OSError."""
        found = [part for part in self._of(uid) if any(each.name == chunk for each in part.chunks)]
        return patiently(lambda: [data for part in found for _, data in self._storage.read(part, [chunk])], FEW)

    def _of(self, uid: str) -> list[PartHandle]:
        return [part for name, part in sorted(self._parts.items()) if vertex_of_part(name)[0] == uid]


Left = Collection[tuple[str, str]]
"""Chunks of stages: the uid of each one's stage, and its name."""
Agree = Callable[[SavedStates], Left]
"""Raises where a query can't go on from these states; gives those of a savepoint that it does without."""


@dataclass(frozen=True, slots=True)
class StageNames:
    """The names that people know of a query's stages, by uid, and of its sink."""

    stages: Mapping[str, str] = field(default_factory=dict)
    sink: str = ""

    @classmethod
    def of(cls, graph: JobGraph) -> StageNames:
        """Those of a plan."""
        last = [vertex for vertex in graph.vertices if not graph.outputs_of(vertex.id) and vertex.operators]
        sinks = ", ".join(vertex.operators[-1].name for vertex in last)
        return cls({vertex.uid: vertex.name for vertex in graph.vertices}, sinks)


class QueryStorage:
    """The checkpoints of one query.

    `agree` is asked before the location is claimed, or `begin_anew` where there is no checkpoint: it raises where the
    query has been there before. `sources` says by uid what the positions are of, `names` what people call the parts.
    """

    def __init__(
        self,
        options: StreamingOptions,
        agree: Agree = lambda _: (),
        sources: Mapping[str, SourceReads] | None = None,
        begin_anew: Callable[[], None] = lambda: None,
        names: StageNames | None = None,
    ) -> None:
        self._agree = agree
        self._begin_anew = begin_anew
        self._sources = sources or {}
        self._names = names or StageNames()
        self.beginning = QueryBeginning()
        """The beginning that the query goes on from, once the location is claimed."""
        self._options = options
        self._storage = CheckpointStorage(options.location)
        self._kept = KeptCheckpoints()
        self._sign = RunningSign(*self._storage.place)
        self._origin = ""
        """The savepoint with which the location began."""
        self._copied: Stamp | None = None
        """The checkpoint that a savepoint was copied to, as long as the query may be refused."""
        self._newest: SavedParts | None = None
        """The last one of this driver."""
        self._is_uncertain = False
        """True if it is unknown whether the last checkpoint is complete."""
        self._positions = FirstPositions(*self._storage.place)
        self._looked: Found | None = None
        """The checkpoints that `look` has found."""
        self._first: tuple[dict[str, First], dict[str, First]] = ({}, {})
        """The first positions that were found, and those with which the query begins."""

    def look(self, vertices: Mapping[str, int]) -> None:
        """Raise what `claim` would raise, and change nothing: ahead of all else that may refuse the query."""
        self._looked = self._storage.look(self._retained)
        self._refuse(self._looked, vertices)

    def first_positions(self, ask: Mapping[str, Callable[[], bytes]]) -> dict[str, bytes]:
        """The positions at which those sources begin of which no checkpoint has one.

        `ask` says by uid where one begins now. No source is asked twice: what an earlier driver was told counts, and
        `claim` writes down what is new. Raises CheckpointError where that can't be read, and what `ask` raises.
        """
        metadata = (self._looked or self._storage.look(self._retained)).metadata
        if metadata is None and self._options.savepoint:
            metadata = SavepointFolder(self._options.savepoint).find().metadata
        wanted = ask.keys() - (metadata.sources.keys() if metadata is not None else ())
        found = self._written() if wanted else {}
        begin = {}
        for uid in wanted:
            what = self._sources[uid].what
            known = found.get(uid)
            begin[uid] = known if known is not None and known[0] == what else (what, ask[uid]())
        self._first = found, begin
        return {uid: position for uid, (_, position) in begin.items()}

    def claim(self, vertices: Mapping[str, int]) -> None:
        """Take the location over; `vertices` are those of the plan, with their parallelism, by uid.

        Raises PlanError where the checkpoint there is of another plan, CheckpointError or OSError where the location
        can't be used, or none of its checkpoints; its former owner has the location then. A checkpoint that is
        damaged is named in a warning, and the one before it is taken.
        """
        found = self._storage.claim(self._retained, lambda found: self._refuse(found, vertices))
        try:
            self._sign.put(self._storage.owner)
            self._write_first_positions()
            for unusable in found.unusable:
                text = f"checkpoint {unusable.stamp} can't be restored from, an older one is taken: {unusable.cause}"
                _LOG.warning(text)
                warnings.warn(text, RuntimeWarning, stacklevel=3)
            if not found.kept and self._options.savepoint:
                found = self._copy_savepoint(SavepointFolder(self._options.savepoint))
        except BaseException:  # among them warnings that the user has made errors of
            self.withdraw()
            raise
        kept = tuple(_saved(each.metadata) for each in found.kept)
        saved = kept[0] if kept else None
        for each in found.kept:
            self._kept.keep(each.stamp)
        self._origin = found.metadata.savepoint if found.metadata is not None else ""
        self.beginning = QueryBeginning(self._storage.owner, saved, kept[1:])

    def _written(self) -> dict[str, First]:
        try:
            return patiently(self._positions.read, FEW)
        except OSError as error:
            raise CheckpointError(f"{self._options.location} can't be read: {error}") from error

    def _write_first_positions(self) -> None:
        """Write down where the query begins, ahead of its first row."""
        found, begin = self._first
        if begin == found or not begin:
            return
        if self._written() != found:
            raise CheckpointError(
                f"another driver has begun this query at {self._options.location} meanwhile: start it again, and it"
                " begins where that one did"
            )
        self._positions.write(begin)

    def withdraw(self) -> None:
        """The query did not begin: the former owner has the location again."""
        self._sign.take_away()
        if self._copied is not None:  # without the claim its owner is not known
            self._storage.discard(self._copied)
            self._copied = None
        self._storage.withdraw()

    def check(self) -> None:
        """Raise FencedError where another driver has taken over, OSError where it is away."""
        self._storage.check()

    def store(self, saved: SavedParts) -> None:
        """Make a checkpoint complete; raises FencedError where another driver has taken over, or OSError.

        Raises UncertainCheckpointError where it stays unknown whether it is: nothing is removed from then on.
        """
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
            {uid: (reads.what, reads.partitions) for uid, reads in self._sources.items()},
            self._names.stages,
            self._names.sink,
            self._origin,
        )
        try:
            self._kept.keep(self._storage.commit(metadata))
        except UncertainCheckpointError:
            self._is_uncertain = True
            raise
        self._newest = saved

    def finish(self) -> None:
        """All tasks have read all of their rows and published them: a last checkpoint says that, and has no parts.

        It does not count among those that are retained. Raises as `store` does.
        """
        last = self._newest or self.beginning.saved
        if last is None or self._is_uncertain:
            return
        names = [part_name(uid, task) for uid, width in last.parallelism.items() for task in range(width)]
        self.store(SavedParts(last.checkpoint + 1, {}, frozenset(names), last.parallelism))
        self._kept.drop(last.checkpoint + 1)

    def sweep(self) -> None:
        """After a commit: remove what tasks have left of checkpoints that were given up, and earlier owners."""
        if not self._is_uncertain:
            self._storage.sweep(self._kept.stamps)

    def discard(self, checkpoint: int) -> None:
        """Remove a checkpoint."""
        if self._is_uncertain:
            return
        stamp = self._kept.drop(checkpoint)
        if stamp is not None or not self._kept.is_read(checkpoint):
            self._storage.discard(stamp or self._storage.stamp(checkpoint))

    def discard_part(self, handle: bytes) -> None:
        """Remove what came too late for its checkpoint, and with it what is left of that."""
        stamp = folder_of(unpack_part(handle).path)
        if stamp is not None and stamp not in self._kept.stamps and not self._is_uncertain:
            self._storage.discard(stamp)

    def discard_logs(self, before: int) -> None:
        """Remove the logs of attempts that are over, begun after checkpoints before this one: they are not needed."""
        self._storage.discard_logs(before)

    def end(self) -> None:
        """The query is over: remove what of its logs no kept checkpoint needs; raises FencedError or OSError.

        Its last checkpoint may have become complete too late for the core to discard an older one.
        """
        try:
            if self._is_uncertain:
                return
            for checkpoint in self._kept.numbers[: -self._retained]:
                self.discard(checkpoint)
            self._storage.end()
        finally:
            self._sign.take_away()

    def save(self, path: str, least: int = 0) -> int:
        """Write a savepoint of the newest complete checkpoint, which has this number at least; its number.

        The folder is prepared. Any thread may ask; checkpoints go on meanwhile. Raises CheckpointError.
        """
        folder = SavepointFolder(path)
        with self._kept.newest() as stamp:
            try:
                if stamp is None or stamp.number < least:
                    raise CheckpointError(f"{self._options.location} has no checkpoint that is as new as {least}")
                metadata = patiently(lambda: self._storage.metadata(stamp), FEW)
            except (OSError, CheckpointError) as error:
                folder.remove()
                raise CheckpointError(f"no savepoint was written at {path}: {error}") from error
            folder.save(self._storage, metadata)
            return stamp.number

    @property
    def _retained(self) -> int:
        return max(1, self._options.retained)

    def _refuse(self, found: Found, stages: Mapping[str, int]) -> None:
        """Raise PlanError where a query of these stages can't go on from what was found."""
        if self._options.savepoint:
            folder = SavepointFolder(self._options.savepoint)
            savepoint = folder.find()
            if found.metadata is None:
                self._refuse_metadata(savepoint.metadata, folder, f"the savepoint at {folder.location}", stages)
                return
            if found.metadata.savepoint != savepoint.identity:
                raise PlanError(
                    f"the checkpoint at {self._options.location} did not begin with the savepoint at"
                    f" {folder.location}: give the query another checkpointLocation to begin with that, or leave the"
                    " option savepoint out to go on from the checkpoint"
                )
        if found.metadata is None:
            self._begin_anew()
        else:
            where = f"the checkpoint at {self._options.location}"
            self._refuse_metadata(found.metadata, self._storage, where, stages)

    def _refuse_metadata(
        self, metadata: CheckpointMetadata, storage: PartStorage, where: str, stages: Mapping[str, int]
    ) -> None:
        """Raise PlanError where a query of these stages can't go on from a checkpoint that lies in this storage."""
        if metadata.hash != KEY_GROUP_HASH:
            raise PlanError(f"{where} has keys by {metadata.hash}, this query by {KEY_GROUP_HASH}: it can't go on")
        groups = (metadata.max_parallelism, self._options.max_parallelism)
        saved = _saved(metadata)
        if self._sources:
            refuse_other_sources(saved, self._sources, where)
        refuse_other_plan(saved, groups, stages, where, {**metadata.stages, **self._names.stages})
        refuse_finished(saved, where)
        self._agree(SavedStates(storage, metadata, is_savepoint=isinstance(storage, SavepointFolder)))

    def _copy_savepoint(self, folder: SavepointFolder) -> Found:
        """Make a savepoint the first checkpoint of the location, without what the query does without."""
        saved = folder.find()
        left = self._agree(SavedStates(folder, saved.metadata, is_savepoint=True))
        wanted = {name: _without(part, vertex_of_part(name)[0], left) for name, part in saved.metadata.parts.items()}
        stamp = self._copied = self._storage.stamp(saved.metadata.number)
        try:
            parts = copied(folder, wanted, lambda name: self._storage.open(stamp, f"saved-{name}"))
            metadata = replace(saved.metadata, parts=parts, savepoint=saved.identity)
            self._storage.commit(metadata)
        except OSError as error:
            raise CheckpointError(
                f"the savepoint at {folder.location} can't be copied to {self._options.location}: {error}"
            ) from error
        return Found((UsableCheckpoint(stamp, metadata),))


def _without(part: PartHandle, uid: str, left: Left) -> PartHandle:
    """A part of a stage without what is left behind."""
    return replace(part, chunks=tuple(chunk for chunk in part.chunks if (uid, chunk.name) not in left))


def _saved(metadata: CheckpointMetadata) -> SavedParts:
    parts = {name: pack_part(handle) for name, handle in metadata.parts.items()}
    widths = dict(metadata.parallelism)
    sources = {uid: SourceReads(*reads) for uid, reads in metadata.sources.items()}
    finished = frozenset(metadata.finished)
    return SavedParts(metadata.number, parts, finished, widths, is_logged=metadata.is_logged, sources=sources)
