# SPDX-License-Identifier: Apache-2.0
"""Rows in flight of a checkpoint, as one task of a perhaps wider or narrower plan begins with them.

An exchange with as many tasks at both ends as before gives each task its own channels back. Of one that has changed
the consumers take all, as `rescaling` deals it out, under the producer `FORMER`; the producers take nothing. So it is
where rows in flight are logged, or were: the rows then lie in the logs of the stages in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pyarrow as pa

from penstock.checkpoint.channel_state import FORMER, ChannelKey, Side, unpack
from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.checkpoint.logged_rows import pieces_between, positions_of
from penstock.checkpoint.metadata import Chunk, PartHandle
from penstock.checkpoint.storage import PartStorage
from penstock.graph import JobEdge, JobGraph, JobVertex
from penstock.record import PartitionerSpec
from penstock.stream.in_flight import InFlight, edge_uids, restored, rows_of, uid_of
from penstock.stream.rescaling import EdgeChange, own_rows, partitioner_of, taken_by

Rows = dict[ChannelKey, list[InFlight]]


@dataclass(slots=True)
class RestoredRows:
    """By channel: those that are first in a task's inputs, and those that are first in its outputs."""

    incoming: Rows = field(default_factory=dict)
    outgoing: Rows = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of rows."""
        found = (*self.incoming.values(), *self.outgoing.values())
        return sum(rows_of(each).num_rows for rows in found for each in rows)


class _Saved:
    """The saved channels of some parts."""

    def __init__(self, storage: PartStorage, parts: Sequence[PartHandle]) -> None:
        self._storage = storage
        self._taken = positions_of(parts, "in")
        self._given = positions_of(parts, "out")
        self._parts: dict[ChannelKey, PartHandle] = {}
        for part in parts:
            keys = [ChannelKey.of(chunk.name) for chunk in part.chunks]
            # Also those of which a log has lost all that it should have.
            keys += [
                key for key, given in positions_of([part], "out").items() if given != self._taken.get(key, given)
            ]
            self._parts.update((key, part) for key in keys if key is not None)

    def of(self, edge: str) -> list[ChannelKey]:
        """The channels of an exchange."""
        return sorted(key for key in self._parts if key.edge == edge)

    @property
    def edges(self) -> list[str]:
        """All exchanges with rows."""
        return sorted({key.edge for key in self._parts})

    def is_logged(self, edge: str) -> bool:
        """Tell whether the rows of an exchange lie in logs."""
        return any(key.edge == edge for key in (*self._taken, *self._given))

    def rows(self, key: ChannelKey, schema: pa.Schema) -> list[InFlight]:
        """The rows of a channel; raises CorruptCheckpointError."""
        part = self._parts[key]
        is_logged = key in self._given
        pieces = self._range(key, part) if is_logged else part.pieces(key.chunk)
        found: list[InFlight] = []
        read = self._storage.read(replace(part, chunks=tuple(pieces)))
        for chunk, (_, data) in zip(pieces, read, strict=True):
            content = unpack(key, data, f"{self._storage.location}/{part.file_of(chunk)}")
            rows = restored(part.with_file(chunk), content, schema)
            if is_logged and (count := sum(rows_of(each).num_rows for each in rows)) != chunk.rows:
                where = f"{self._storage.location}/{part.file_of(chunk)}"
                raise CorruptCheckpointError(f"{where}: a piece of {key.chunk} has {count} rows, not {chunk.rows}")
            found += _behind(rows, self._taken[key] - chunk.first) if is_logged else rows
        return found

    def _range(self, key: ChannelKey, part: PartHandle) -> Sequence[Chunk]:
        """The pieces of a log that hold what was in flight."""
        if key not in self._taken:
            raise CorruptCheckpointError(f"{part.path}: it is not known which rows of {key.chunk} were in flight")
        pieces = [chunk for chunk in part.logged if chunk.name == key.chunk]
        try:
            return pieces_between(key.chunk, pieces, self._taken[key], self._given[key])
        except CheckpointError as error:
            raise CorruptCheckpointError(f"{part.path}: {error}") from error


def _behind(rows: Sequence[InFlight], taken: int) -> list[InFlight]:
    """These rows but for the first ones; a piece that is given in part is another than the one that lies there."""
    found: list[InFlight] = []
    for each in rows:
        batch = rows_of(each)
        if taken <= 0:
            found.append(each)
        elif taken < batch.num_rows:
            found.append(batch.slice(taken))
        taken -= batch.num_rows
    return found


@dataclass(frozen=True, slots=True)
class FormerPlan:
    """The facts of the plan that took the checkpoint that may not have changed.

    `widths` are the stages' numbers of tasks, by uid; `groups` is the number of key groups. `by_function`: rows of a
    user's function may be dealt out anew. `logs`: rows in flight are logged now.
    """

    widths: Mapping[str, int]
    groups: int
    by_function: bool = False
    logs: bool = False


class RowsReader:
    """Reads one task's share."""

    def __init__(self, graph: JobGraph, vertex: JobVertex, subtask: int, then: FormerPlan) -> None:
        self._graph = graph
        self._subtask = subtask
        self._then = then
        uids = edge_uids(graph)
        self._edges = {uids[edge.id]: edge for edge in graph.edges}
        self._inputs = [uids[edge.id] for edge in graph.inputs_of(vertex.id)]
        self._outputs = [uids[edge.id] for edge in graph.outputs_of(vertex.id)]

    def read(self, storage: PartStorage, parts: Sequence[PartHandle]) -> RestoredRows:
        """The rows of these parts that are the task's.

        Raises CheckpointError for an exchange that is not there any more or whose rows can't be dealt out, and
        CorruptCheckpointError for damage; both name what it is.
        """
        saved = _Saved(storage, parts)
        for edge in saved.edges:
            if edge not in self._edges:
                raise CheckpointError(
                    f"the checkpoint to go on from holds rows in flight of {edge}, and the query has no such "
                    "exchange: restore with the plan that took it, or without the rows in flight (option "
                    "recoverWithoutInFlight)"
                )
        found = RestoredRows()
        for uid in self._inputs:
            found.incoming |= self._taken(uid, saved) if self._takes_all(uid, saved) else self._own(uid, "in", saved)
        for uid in self._outputs:
            if not self._takes_all(uid, saved):
                found.outgoing |= self._own(uid, "out", saved)
        return found

    def _own(self, uid: str, side: Side, saved: _Saved) -> Rows:
        """Of an exchange as it was: the channels of one side."""
        schema = self._edges[uid].schema
        return {key: saved.rows(key, schema) for key in saved.of(uid) if key.side == side}

    def _taken(self, uid: str, saved: _Saved) -> Rows:
        """Of an exchange that has changed: what falls to this consumer."""
        change, schema = self._change(uid), self._edges[uid].schema
        taken = taken_by(self._subtask, change, saved.of(uid))
        if not taken:
            return {}
        partitioner = partitioner_of(change)
        rows: list[InFlight] = []
        for each in taken:
            found = saved.rows(each.key, schema)
            # A filtered piece is another than the one that lies there.
            rows += own_rows(self._subtask, partitioner, map(rows_of, found)) if each.is_filtered else found
        return {ChannelKey("in", uid, FORMER, self._subtask): rows}

    def _takes_all(self, uid: str, saved: _Saved) -> bool:
        """Tell whether the consumers of an exchange take everything: its producers then take nothing."""
        return self._then.logs or saved.is_logged(uid) or self._change(uid).is_changed

    def _change(self, uid: str) -> EdgeChange:
        edge: JobEdge = self._edges[uid]
        ends = [self._graph.vertex(number) for number in (edge.producer, edge.consumer)]
        producers, consumers = [
            (self._then.widths.get(uid_of(vertex), vertex.parallelism), vertex.parallelism) for vertex in ends
        ]
        spec = cast("PartitionerSpec", edge.exchange)
        return EdgeChange(uid, spec, producers, consumers, self._then.groups, forced=self._then.by_function)
