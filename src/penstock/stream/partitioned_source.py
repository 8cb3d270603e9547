# SPDX-License-Identifier: Apache-2.0
"""A user's own source: partitions that are read from an offset.

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
from dataclasses import dataclass
from typing import Any, Protocol

import msgpack
import pyarrow as pa

from penstock.shuffle.errors import PlanError
from penstock.stream.sources import read_whole
from penstock.task.conform import Conformer

POLL_SECONDS = 0.05
"""A reader that had nothing is asked again after so long."""

Position = tuple[Any, int]
"""An offset, and how many rows behind it were given."""


class PartitionedRows(Protocol):
    """What a user writes; picklable."""

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""

    def partitions(self) -> Sequence[str]:
        """The names of the partitions, which stay the same as long as the query lives."""

    def read(self, partition: str, offset: Any) -> Iterator[tuple[pa.RecordBatch | None, Any]]:
        """The rows behind an offset (None: all), each batch with the offset behind it; None where nothing is there.

        Offsets are plain values: numbers, texts, bytes, None, lists and maps of such.
        """


@dataclass(frozen=True, slots=True)
class PartitionedSource:
    """A source of a user's partitions; a subtask has those whose place in the list it is, modulo the parallelism."""

    rows: PartitionedRows
    poll_seconds: float = POLL_SECONDS

    @property
    def name(self) -> str:
        """What `explain` shows."""
        return type(self.rows).__name__

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
        for state in restored:
            positions.update({name: (offset, given) for name, offset, given in msgpack.unpackb(state)})
        names = list(self.rows.partitions())
        if gone := sorted(positions.keys() - set(names)):
            raise PlanError(f"{self.name}: partition {gone[0]!r} was read before and is not among {', '.join(names)}")
        own = {name: positions.get(name, (None, 0)) for name in names[subtask::parallelism]}
        return PartitionedReader(self, own, time.monotonic)

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """All rows for a batch job, which ends when all partitions have."""
        yield from read_whole(self.open(subtask, parallelism, []))


class PartitionedReader:
    """One subtask's partitions, which take turns."""

    def __init__(self, source: PartitionedSource, positions: dict[str, Position], clock: Callable[[], float]) -> None:
        self._source = source
        self._clock = clock
        self._positions = positions
        self._conformer = Conformer(source.schema, source.name)
        self._open = [_Partition(name, source.rows, position) for name, position in positions.items()]
        self._ask_at: float | None = None

    @property
    def is_ended(self) -> bool:
        """Whether all partitions have."""
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
            batch = partition.next(max_rows)
            if not partition.is_ended:
                self._open.append(partition)
            self._positions[partition.name] = partition.position
            if batch is not None:
                self._ask_at = None
                return self._conformer.conform(batch)
        self._ask_at = self._clock() + self._source.poll_seconds
        return None

    def snapshot(self) -> bytes:
        """The position of each partition."""
        packed: bytes = msgpack.packb([(name, *position) for name, position in self._positions.items()])
        return packed

    def close(self) -> None:
        """End the user's iterators."""
        for partition in self._open:
            partition.close()


class _Partition:
    """One partition under way."""

    def __init__(self, name: str, rows: PartitionedRows, position: Position) -> None:
        self.name = name
        self.position = position
        self.is_ended = False
        offset, self._skip = position
        self._found = rows.read(name, offset)
        self._batch: pa.RecordBatch | None = None
        self._behind: Any = offset

    def next(self, max_rows: int) -> pa.RecordBatch | None:
        """Up to so many rows; None where there are none now, or none any more."""
        if self._batch is None and not self._fetch():
            return None
        batch = self._batch
        assert batch is not None  # noqa: S101 - just fetched
        offset, given = self.position
        if batch.num_rows > max_rows:
            self._batch, self.position = batch.slice(max_rows), (offset, given + max_rows)
            return batch.slice(0, max_rows)
        self._batch, self.position = None, (self._behind, 0)
        return batch

    def close(self) -> None:
        """End the user's iterator, where it is one that can be ended."""
        close = getattr(self._found, "close", None)
        if close is not None:
            close()

    def _fetch(self) -> bool:
        """Ask the user's iterator; whether it gave rows that were not given before."""
        for batch, behind in self._found:
            self._behind = behind
            if batch is None:
                return False
            if batch.num_rows <= self._skip:
                # Cut otherwise than before: the rest of what was given is in the next ones.
                self._skip -= batch.num_rows
                self.position = (behind, self._skip)
                continue
            self._batch, self._skip = batch.slice(self._skip), 0
            return True
        self.is_ended = True
        return False
