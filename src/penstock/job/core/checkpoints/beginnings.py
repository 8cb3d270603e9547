# SPDX-License-Identifier: Apache-2.0
"""The beginning of the next attempt of a streaming query: the newest checkpoint that is not damaged, and whose it is.

The core tells it which checkpoints became complete and which proved damaged. It answers what each task is given.
"""

from __future__ import annotations

from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.metadata import unpack_part
from penstock.graph import JobGraph
from penstock.graph.restoring import beginning_of, parts_in_front
from penstock.graph.streaming import QueryBeginning, SavedParts, StreamDeployment, StreamingOptions
from penstock.job.core.execution.subtask import Subtask
from penstock.shuffle import AttemptId


class Beginnings:
    """Those of one query; `beginning` is what its driver found when it claimed the location."""

    def __init__(self, graph: JobGraph, options: StreamingOptions, beginning: QueryBeginning) -> None:
        self._graph = graph
        self._owner = beginning.owner
        self._kept = [] if beginning.saved is None else [beginning.saved, *beginning.older]
        """The complete checkpoints, newest first."""
        self._retained = max(1, options.retained)
        self._overtakes = options.unaligned
        self._logs = options.logs_in_flight
        self._base: int | None = None
        """The checkpoint that all tasks began with,"""
        self._is_whole = True
        """and True while it is not known: all are about to begin anew."""
        self._drops_in_flight = options.recover_without_in_flight
        """True if rows in flight of the newest one are dropped: one that an earlier driver took."""

    @property
    def numbers(self) -> list[int]:
        """The complete checkpoints, oldest first."""
        return [saved.checkpoint for saved in reversed(self._kept)]

    @property
    def newest(self) -> SavedParts | None:
        """The newest complete checkpoint."""
        return self._kept[0] if self._kept else None

    @property
    def bytes_in_flight(self) -> int:
        """Of the rows in flight that the next attempt begins with, where checkpoints may hold such rows."""
        if not self._kept or self._drops_in_flight or not self._overtakes:
            return 0
        chunks = (chunk for part in self._kept[0].parts.values() for chunk in unpack_part(part).chunks)
        return sum(chunk.length for chunk in chunks if ChannelKey.of(chunk.name) is not None)

    def begin_anew(self) -> None:
        """All tasks begin with what is the newest checkpoint then."""
        self._is_whole = True

    def running(self) -> None:
        """All tasks run that began with it."""
        self._is_whole = False

    def completed(self, saved: SavedParts) -> None:
        """A newer checkpoint is complete."""
        self._kept = [saved, *self._kept][: self._retained]
        self._drops_in_flight = False

    def damaged(self) -> int:
        """The newest one can't be restored from, and the one before it is the newest now: its number."""
        del self._kept[0]
        return self._kept[0].checkpoint

    def of(self, attempt: AttemptId, behind: int) -> StreamDeployment:
        """The deployment of a task; `behind` is the newest checkpoint that was begun."""
        if not self._kept:
            return StreamDeployment(self._owner, behind=behind)
        graph, saved = self._graph, self._kept[0]
        if self._is_whole:
            self._base = saved.checkpoint
        vertex = graph.vertex(attempt.vertex)
        found = beginning_of(saved, vertex.uid, attempt.subtask, vertex.parallelism)
        in_front = [graph.vertex(edge.producer) for edge in graph.inputs_of(vertex.id)]
        producers = {producer.uid: producer.parallelism for producer in in_front}
        stage, takes_all = (vertex.uid, vertex.parallelism), self._logs or saved.is_logged
        names = (*found.parts, *parts_in_front(saved, stage, producers, takes_all=takes_all))
        restored = tuple((name, saved.parts[name]) for name in names)
        widths = tuple(sorted(saved.parallelism.items()))
        goes_on = self._base is None or saved.checkpoint > self._base
        drops = self._drops_in_flight
        return StreamDeployment(self._owner, found.is_finished, restored, widths, drops, behind, goes_on)

    def had_finished(self, subtask: Subtask) -> bool:
        """Tell whether a task had given all its rows in the checkpoint."""
        if not self._kept:
            return False
        vertex = subtask.vertex
        return beginning_of(self._kept[0], vertex.uid, subtask.index, vertex.parallelism).is_finished
