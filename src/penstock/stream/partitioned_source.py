# SPDX-License-Identifier: Apache-2.0
"""A user's own source: partitions that are read from an offset.

The class that users write::

    class Orders:
        schema = pa.schema([("id", pa.int64())])

        def partitions(self):
            return ["0", "1"]

        def read(self, partition, offset):
            log = open_log(partition, 0 if offset is None else offset)
            while True:
                yield log.next_batch(), log.offset      # or `None, offset` where there is nothing now

    PartitionedSource(Orders())

Reading from an offset again must give the same rows again, in the same order; batches may be cut otherwise. The
iterator's end is the end of its partition. It must not wait: what it waits for, the whole task waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgpack
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import PlanError
from penstock.operators.conform import Conformer
from penstock.operators.functions import ending_by_itself
from penstock.record.copies import Copies
from penstock.record.layout import contains
from penstock.record.row_sizes import first_rows
from penstock.stream.sources import read_whole
from penstock.stream.watermarks import CAUGHT_UP, Waiting

POLL_SECONDS = 0.05
"""A reader that had nothing is asked again after so long."""
_EMPTY_BATCHES = 100
"""After so many without a row the task has other things to do: it answers barriers between two polls."""
_GATHER_SECONDS = 0.004
_GATHER_BYTES = 1 << 20
"""Batches of a partition are put together while they took no longer, and are no more: each costs its step as much as
some thousand rows."""

Position = tuple[Any, int]
"""An offset, and the number of rows after it that were given."""


class PartitionedRows(Protocol):
    """The source that a user writes; picklable."""

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""

    def partitions(self) -> Sequence[str]:
        """The names of the partitions. They are asked for when a run starts; a later run may have more of them."""

    def read(self, partition: str, offset: Any) -> Iterator[tuple[pa.RecordBatch | None, Any]]:
        """The rows after an offset (None: all), each batch with the offset after it; None if nothing is there.

        A batch without rows moves the offset, and more is asked for at once. Offsets are plain values: numbers,
        texts, bytes, None, lists and maps of such. A batch is copied before more is asked for, so its memory may be
        used again.

        The rows may have `beginning()`, the offset of a partition that a query does not know: positions have it from
        the start, also where nothing was read. The iterator may have `close()`, and `completed(offset)`: a checkpoint
        at this offset is complete, so rows before it are not asked for again. It hears both after its end, too.
        """


@dataclass(frozen=True, slots=True)
class PartitionedSource:
    """A source of a user's partitions; a subtask has those whose place in the order it is, modulo the parallelism.

    The order is that in which the query came to know them, and snapshots hold it: so a partition that appears in
    front of others moves none of them. `names` are the partitions that all tasks of a run see.
    """

    rows: PartitionedRows
    poll_seconds: float = POLL_SECONDS
    names: tuple[str, ...] = ()
    is_available_now: bool = False

    def available_now(self) -> PartitionedSource:
        """Up to where each partition has nothing for the first time."""
        return replace(self, is_available_now=True)

    def pinned(self) -> PartitionedSource:
        """With the partitions that there are now."""
        return replace(self, names=tuple(self.rows.partitions()))

    @property
    def name(self) -> str:
        """The name that `explain` shows: the user's `name`, or that of the class.

        It tells sources apart in checkpoints.
        """
        named = getattr(self.rows, "name", None)
        return named if isinstance(named, str) and named else type(self.rows).__name__

    @property
    def reads(self) -> str:
        """The name of the input that its positions in checkpoints are of."""
        kind = type(self.rows).__name__
        return f"partitions of {kind}" if self.name == kind else f"partitions of {kind} {self.name}"

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return self.rows.schema

    def splits(self) -> int | None:
        """One subtask for each partition at most."""
        return max(1, len(self.rows.partitions()))

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> PartitionedReader:
        """A subtask's partitions, each from where it was; raises PlanError where one is not there any more."""
        positions: dict[str, Position] = {}
        known: list[str] = []
        for state in restored:
            order, found = msgpack.unpackb(state)
            known += [name for name in order if name not in known]
            positions.update({name: (offset, given) for name, offset, given in found})
        names = self.names or tuple(self.rows.partitions())
        if gone := sorted(set(known) - set(names)):
            raise PlanError(f"{self.name}: partition {gone[0]!r} was read before and is not among {', '.join(names)}")
        order = [*known, *(name for name in names if name not in known)]
        beginning = getattr(self.rows, "beginning", lambda: None)()
        own = {name: positions.get(name, (beginning, 0)) for name in order[subtask::parallelism]}
        return PartitionedReader(self, order, own, time.monotonic)

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """All rows for a batch job, which ends when all partitions have."""
        yield from read_whole(self.open(subtask, parallelism, []))


class PartitionedReader:
    """One subtask's partitions, which take turns."""

    def __init__(
        self,
        source: PartitionedSource,
        order: Sequence[str],
        positions: dict[str, Position],
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._order = order
        self._clock = clock
        self._positions = positions
        self._conformer = Conformer(source.schema, source.name)
        self._copies = Copies()
        self._joins = not any(contains(kind, pt.is_dictionary) for kind in source.schema.types)
        """True if any two batches can be one."""
        self._caught_up: list[_Partition] = []
        """Those that have ended, or have given what is available, where no more is asked for in this run."""
        self._open = [_Partition(name, source.rows, position) for name, position in positions.items()]
        self._ask_at: float | None = None
        self.partition = ""
        """The partition of the batch that was read last."""

    @property
    def is_ended(self) -> bool:
        """True if all partitions have ended, or given what is available where that is all."""
        return not self._open

    @property
    def wake_at(self) -> float | None:
        """When they are asked again."""
        return self._ask_at

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows of the first partition that has some."""
        if self._ask_at is not None and self._clock() < self._ask_at:
            return None
        for _ in range(len(self._open)):
            partition = self._open.pop(0)
            batches, has_more = self._gathered(partition, max_rows)
            is_over = self._source.is_available_now and not has_more and not partition.is_under_way
            (self._caught_up if is_over or partition.is_ended else self._open).append(partition)
            self._positions[partition.name] = partition.position
            partition.asked(self._clock(), has_rows=bool(batches) or partition.is_under_way)
            if batches:
                self._ask_at, self.partition = None, partition.name
                return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        is_under_way = any(partition.is_under_way for partition in self._open)
        self._ask_at = None if is_under_way else self._clock() + self._source.poll_seconds
        return None

    def _gathered(self, partition: _Partition, max_rows: int) -> tuple[list[pa.RecordBatch], bool]:
        """The next batches of a partition, up to so many rows, and whether it may have more now."""
        batches: list[pa.RecordBatch] = []
        until, size = self._clock() + _GATHER_SECONDS, 0
        while (batch := partition.next(max_rows)) is not None:
            batches.append(self._copies.of(self._conformer.conform(batch)))
            max_rows -= batch.num_rows
            size += batch.nbytes
            if not (self._joins and max_rows > 0 and size < _GATHER_BYTES and self._clock() < until):
                return batches, True
        return batches, False

    def partitions_waiting(self) -> Waiting:
        """Those that have not ended, or may go on in a later run, and how long each has had nothing."""
        goes_on = self._source.is_available_now
        caught_up = {each.name: CAUGHT_UP for each in self._caught_up if goes_on or not each.is_ended}
        return {**caught_up, **{each.name: each.empty_seconds for each in self._open}}

    @property
    def reads_backlog(self) -> bool:
        """True while rows of a table's first look are to be given, whose order says little of their times."""
        is_backlog = getattr(self._source.rows, "is_backlog", None)
        return is_backlog is not None and any(is_backlog(offset) for offset, _ in self._positions.values())

    def unit_of(self, partition: str) -> object:
        """The batch of event time in whose rows a partition is; None: between two. The rows may have `unit_of`."""
        unit_of = getattr(self._source.rows, "unit_of", None)
        return None if unit_of is None else unit_of(*self._positions[partition])

    def read_by_partition(self) -> None:
        """It always does."""

    def snapshot(self) -> bytes:
        """The order of all partitions, and the position of each of its own."""
        own = [(name, *position) for name, position in self._positions.items()]
        packed: bytes = msgpack.packb((self._order, own))
        return packed

    def completed(self, position: bytes) -> None:
        """Tell the user's iterators of a complete checkpoint with this position, where they have ears for it."""
        _, found = msgpack.unpackb(position)
        offsets = {name: offset for name, offset, _ in found}
        for partition in (*self._open, *self._caught_up):
            partition.completed(offsets[partition.name])

    def close(self) -> None:
        """End the user's iterators."""
        for partition in (*self._open, *self._caught_up):
            partition.close()


class _Partition:
    """One partition under way."""

    def __init__(self, name: str, rows: PartitionedRows, position: Position) -> None:
        self.name = name
        self.position = position
        self.is_ended = False
        self.is_under_way = False
        """True if it was asked for long, and may have more at once."""
        offset, self._skip = position
        self._found = rows.read(name, offset)
        self._given = iter(ending_by_itself(self._found, f"partition {name}"))
        self._batch: pa.RecordBatch | None = None
        self._behind: Any = offset
        self._empty_since: float | None = None
        self.empty_seconds: float | None = None
        """The time from the first to the last time that it was asked and had nothing; None: it had some then."""

    def asked(self, now: float, *, has_rows: bool) -> None:
        """It was asked."""
        self._empty_since = None if has_rows else now if self._empty_since is None else self._empty_since
        self.empty_seconds = None if self._empty_since is None else now - self._empty_since

    def next(self, max_rows: int) -> pa.RecordBatch | None:
        """Up to so many rows; None where there are none now, or none any more."""
        if self._batch is None and not self._fetch():
            return None
        batch = self._batch
        assert batch is not None  # noqa: S101 - just fetched
        offset, given = self.position
        rows = first_rows(batch, max_rows)
        if batch.num_rows > rows.num_rows:
            self._batch, self.position = batch.slice(rows.num_rows), (offset, given + rows.num_rows)
            return rows
        self._batch, self.position = None, (self._behind, 0)
        return batch

    def completed(self, offset: Any) -> None:
        """Tell the user's iterator, where it wants to know."""
        completed = getattr(self._found, "completed", None)
        if completed is not None:
            completed(offset)

    def close(self) -> None:
        """End the user's iterator, where it is one that can be ended."""
        close = getattr(self._found, "close", None)
        if close is not None:
            close()

    def _fetch(self) -> bool:
        """Ask the user's iterator; whether it gave rows that were not given before."""
        self.is_under_way = False
        for count, (batch, behind) in enumerate(self._given, 1):
            self._behind = behind
            if batch is None:
                return False
            if batch.num_rows <= self._skip:
                # Cut otherwise than before: the rest of what was given is in the next ones.
                self._skip -= batch.num_rows
                self.position = (behind, self._skip)
                if count == _EMPTY_BATCHES:
                    self.is_under_way = True
                    return False
                continue
            self._batch, self._skip = batch.slice(self._skip), 0
            return True
        self.is_ended = True
        return False
