# SPDX-License-Identifier: Apache-2.0
"""A source of a streaming query: a factory that travels, and one reader for each subtask of its vertex.

A reader gives what there is and never waits; between two calls it stands at a position that `snapshot` writes down
and from which a reader of a later attempt goes on. It must then give the same rows again: a source that can't is not
exactly once, whatever else is. Errors of a reader that are the world's (see `outside`) begin the query anew; all
others are bugs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from penstock.graph import JobGraph
from penstock.graph.streaming import SourceReads
from penstock.stream.outside import outside
from penstock.stream.watermarks import Waiting


class SourceReader(Protocol):
    """One subtask's share of a source. All calls are those of the task's thread.

    It may have `completed(position)`: a checkpoint that holds this snapshot of it is complete. It may have
    `reads_backlog`: True while it has not given all that was there as it was opened, in an order that says nothing of
    the rows' times; event time waits for that.
    """

    @property
    def is_ended(self) -> bool:
        """True if `poll` will give no more, now or later."""

    @property
    def wake_at(self) -> float | None:
        """The moment of the monotonic clock from which `poll` may give something; None: when it is asked."""

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """Up to so many rows, or None where there is nothing now; never waits."""

    def snapshot(self) -> bytes:
        """The position: after all rows that were given."""

    def close(self) -> None:
        """Give back what the reader holds; idempotent."""


class PartitionReader(Protocol):
    """A reader whose batches are of one partition each, once it was asked for that."""

    @property
    def partition(self) -> str:
        """The partition of the batch that was read last."""

    def partitions_waiting(self) -> Waiting:
        """The partitions that may give rows, in this run or a later one, and how long each has had none."""

    def read_by_partition(self) -> None:
        """Give batches of one partition each from now on."""


class StreamSource(Protocol):
    """A source before it is opened; picklable.

    It may have `reads`, a text: what its positions are of, in words that stay the same as long as it goes on reading
    the same. Without it that is `name`. It may have `pinned()`: the source as all tasks of a run are to see it. And
    it may have `available_now()`: the same source, whose readers have ended when they have given what was there as
    they were opened; a later run goes on from their positions. `trigger(availableNow=True)` needs it.

    One that begins at what is there "now" has `first_position()` and `begun_at(position)`: the driver asks it once
    for the bytes that say where a query begins, writes them down ahead of the first row, and has all readers begin
    there.
    """

    @property
    def name(self) -> str:
        """The name that `explain` shows."""

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""

    def splits(self) -> int | None:
        """The number of subtasks that can have a share at most; None: any number."""

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> SourceReader:
        """A subtask's reader.

        `restored` is empty, or holds this subtask's snapshot, or those of all subtasks where their number changed.
        """


class OutsideReader:
    """A reader whose errors are told from bugs: what a task reads from."""

    def __init__(self, reader: SourceReader, name: str) -> None:
        self._reader = reader
        self._name = name

    @property
    def is_ended(self) -> bool:
        """As the reader says."""
        return self._reader.is_ended

    @property
    def wake_at(self) -> float | None:
        """As the reader says."""
        return self._reader.wake_at

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """The reader's next rows."""
        with outside(f"{self._name} can't be read"):
            return self._reader.poll(max_rows)

    def outstanding(self) -> dict[str, float]:
        """As the reader says, if it can tell."""
        tell = getattr(self._reader, "outstanding", None)
        return {} if tell is None else dict(tell())

    def snapshot(self) -> bytes:
        """The reader's position."""
        with outside(f"{self._name} can't tell its position"):
            return self._reader.snapshot()

    def completed(self, position: bytes) -> None:
        """Tell the reader, if it wants to know."""
        completed = getattr(self._reader, "completed", None)
        if completed is not None:
            with outside(f"{self._name} can't take a complete checkpoint"):
                completed(position)

    def close(self) -> None:
        """Close the reader."""
        with outside(f"{self._name} can't be closed"):
            self._reader.close()


class Positions:
    """The positions of a source in checkpoints that are not complete yet."""

    def __init__(self) -> None:
        self._taken: dict[int, bytes] = {}

    def take(self, checkpoint: int, position: bytes) -> None:
        """The position that a checkpoint holds."""
        self._taken[checkpoint] = position

    def completed(self, checkpoint: int, source: SourceReader) -> None:
        """Tell a source that wants to know which of its positions can't be gone back to any more."""
        position = self._taken.get(checkpoint)
        self._taken = {number: taken for number, taken in self._taken.items() if number > checkpoint}
        completed = getattr(source, "completed", None)
        if position is not None and completed is not None:
            completed(position)


def outstanding_of(reader: SourceReader) -> dict[str, float]:
    """The files and bytes that a reader knows of and has not given, where it has `outstanding()`."""
    tell = getattr(reader, "outstanding", None)
    return {} if tell is None else {f"{name}_outstanding": value for name, value in tell().items()}


def partitions_of(reader: SourceReader | None) -> PartitionReader | None:
    """The reader, if it can tell partitions apart: it has the members of `PartitionReader`."""
    inner = _inner(reader)
    return inner if hasattr(inner, "partitions_waiting") else None  # type: ignore[return-value]


def reads_backlog(reader: SourceReader | None) -> bool:
    """Tell whether a reader has not given all that was there as it was opened, if it can tell."""
    return bool(getattr(_inner(reader), "reads_backlog", False))


def has_given_all(reader: SourceReader | None) -> bool:
    """Tell whether a reader has given all files that it knows of; False for one that does not count files."""
    return reader is not None and outstanding_of(reader).get("files_outstanding") == 0


def _inner(reader: SourceReader | None) -> SourceReader | None:
    return reader._reader if isinstance(reader, OutsideReader) else reader  # noqa: SLF001 - of this module


def what_is_read(source: object) -> str:
    """The name of the input that a source's positions in checkpoints are of."""
    return str(getattr(source, "reads", "") or getattr(source, "name", "") or type(source).__name__)


def sources_of(graph: JobGraph) -> dict[str, SourceReads]:
    """The inputs of the sources of a query, by the uids of their stages."""
    return {
        vertex.uid: SourceReads(what_is_read(vertex.source), tuple(getattr(vertex.source, "names", ())))
        for vertex in graph.vertices
        if vertex.source is not None
    }


def first_positions(graph: JobGraph) -> dict[str, Callable[[], bytes]]:
    """The ways to ask the sources of a query where it begins now, by the uids of their stages."""
    return {
        vertex.uid: partial(_first_position, vertex.source)
        for vertex in graph.vertices
        if hasattr(vertex.source, "first_position")
    }


def begun_at(graph: JobGraph, positions: Mapping[str, bytes]) -> JobGraph:
    """The query with sources that begin at these positions."""
    for vertex in graph.vertices:
        if vertex.uid in positions and vertex.source is not None:
            source: Any = vertex.source
            graph = graph.with_vertex(replace(vertex, source=source.begun_at(positions[vertex.uid])))
    return graph


def _first_position(source: Any) -> bytes:
    with outside(f"{source.name} can't tell where it begins"):
        position: bytes = source.first_position()
        return position


def read_whole(reader: SourceReader, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
    """All rows of a reader that ends, in batches of so many rows at most."""
    try:
        while not reader.is_ended:
            batch = reader.poll(rows)
            if batch is not None:
                yield batch
            elif (wake := reader.wake_at) is not None:
                time.sleep(max(0.0, wake - time.monotonic()))
    finally:
        reader.close()
