# SPDX-License-Identifier: Apache-2.0
"""The rate source: rows that are made up, at a given rate or as fast as they go.

Partition `p` of `P` gives the values p, p + P, p + 2P, ...; a subtask has the partitions whose number it is, modulo
the parallelism. A position is how many rows each partition has given, so a later attempt goes on with the same
values. `timestamp` is when a row was due, or was made where there is no rate; it alone differs from run to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgpack
import numpy as np
import pyarrow as pa

from penstock.errors import PlanError, SettingError
from penstock.record.layout import int64_array
from penstock.stream.sources import read_whole

SCHEMA = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])

_MICROS = 1_000_000
PORTION_SECONDS = 0.01
"""Rows that are due are made in portions, so far apart: a step of a task costs more than a thousand rows do.

So a row waits for five milliseconds in the source in the middle; who measures a row's way takes smaller portions.
"""


@dataclass(frozen=True, slots=True)
class RateSource:
    """`rows_per_second` over all partitions (0: as fast as it goes), up to `num_rows` in all (None: for ever).

    Portions are `portion` seconds apart.
    """

    rows_per_second: float = 1
    partitions: int = 1
    num_rows: int | None = None
    portion: float = PORTION_SECONDS

    def __post_init__(self) -> None:
        if self.rows_per_second < 0:
            raise SettingError(f"rowsPerSecond is {self.rows_per_second}: it is 0 (as fast as it goes) or more")
        if self.partitions < 1:
            raise SettingError(f"numPartitions is {self.partitions}: it is at least 1")
        if self.num_rows is not None and self.num_rows < 0:
            raise SettingError(f"numRows is {self.num_rows}: it is at least 0")

    def available_now(self) -> RateSource:
        """Up to its end; raises PlanError where it has none."""
        if self.num_rows is None:
            raise PlanError(f"{self.name} makes rows up as long as it is read: availableNow needs numRows")
        return self

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        pace = f"{self.rows_per_second:g} rows/s" if self.rows_per_second else "as fast as it goes"
        return f"rate({pace}, {self.partitions} partitions)"

    @property
    def reads(self) -> str:
        """The input that its positions in checkpoints are of: another rate gives the same values, later."""
        return f"rate, {self.partitions} partitions"

    @property
    def schema(self) -> pa.Schema:
        """Columns `timestamp` and `value`."""
        return SCHEMA

    def splits(self) -> int | None:
        """One subtask for each partition at most."""
        return self.partitions

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> RateReader:
        """A subtask's partitions, each at the row after those that it has given."""
        given: dict[int, int] = {}
        for state in restored:
            partitions, found = msgpack.unpackb(state, strict_map_key=False)
            if partitions != self.partitions:
                raise PlanError(
                    f"numPartitions is {self.partitions}, and the checkpoint to go on from was taken with "
                    f"{partitions}: the values would be others. Start with that number, or at a new location"
                )
            for number, rows in found.items():
                given[number] = max(rows, given.get(number, 0))
        own = {number: given.get(number, 0) for number in range(subtask, self.partitions, parallelism)}
        return RateReader(self, own, time.monotonic, time.time)

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """The same rows for a batch job, without the rate; raises PlanError where there is no end of them."""
        if self.num_rows is None:
            raise PlanError(f"{self.name} has no end: a batch job needs numRows")
        yield from read_whole(replace(self, rows_per_second=0).open(subtask, parallelism, []))


class RateReader:
    """One subtask's partitions. `given` is the rows of each so far; both clocks count seconds."""

    def __init__(
        self,
        source: RateSource,
        given: dict[int, int],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._rate = float(source.rows_per_second)
        self._step = source.partitions
        self._portion_seconds = source.portion
        self._end = source.num_rows
        self._given = given
        self._clock = clock
        self._wall = wall
        self._began, self._began_wall = clock(), wall()
        self._first = min((number + count * self._step for number, count in given.items()), default=0)
        """The value that is due at the beginning."""
        self._looked = self._began

    @property
    def is_ended(self) -> bool:
        """True if the last row was given."""
        return not self._given or (self._end is not None and self._next()[0] >= self._end)

    @property
    def wake_at(self) -> float | None:
        """When the next portion may be made, and has a row."""
        if not self._rate:
            return None
        due = self._began + (self._next()[0] - self._first) / self._rate
        return due if due <= self._looked else max(due, self._looked + self._portion_seconds)

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows of the portion, those of the partition that is furthest behind first."""
        if self.is_ended:
            return None
        pieces = self._portion(max_rows)
        if not pieces and (now := self._clock()) >= self._looked + self._portion_seconds:
            self._looked = now
            pieces = self._portion(max_rows)
        if not pieces:
            return None
        values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return pa.RecordBatch.from_arrays([self._timestamps(values), int64_array(values)], schema=SCHEMA)

    def snapshot(self) -> bytes:
        """The number of rows that each partition has given."""
        packed: bytes = msgpack.packb([self._step, self._given])
        return packed

    def close(self) -> None:
        """Nothing is held."""

    def _portion(self, max_rows: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """The values that were due at the last look, a piece for each partition."""
        pieces = []
        left = max_rows
        while left:
            value, number = self._next()
            end = self._due(left, value)
            if end <= value:
                break
            rows = min(left, -(-(end - value) // self._step))
            pieces.append(np.arange(value, value + rows * self._step, self._step, dtype=np.int64))
            self._given[number] += rows
            left -= rows
        return pieces

    def _next(self) -> tuple[int, int]:
        """The smallest value that was not given, and its partition."""
        return min((number + count * self._step, number) for number, count in self._given.items())

    def _due(self, max_rows: int, value: int) -> int:
        """The value up to which rows may be given now."""
        end = value + max_rows * self._step
        if self._rate:
            end = min(end, self._first + 1 + int((self._looked - self._began) * self._rate))
        return end if self._end is None else min(end, self._end)

    def _timestamps(self, values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
        if self._rate:
            moments = self._began_wall + (values - self._first) / self._rate
            micros = (moments * _MICROS).astype(np.int64)
        else:
            micros = np.full(len(values), int(self._wall() * _MICROS), np.int64)
        return pa.Array.from_buffers(SCHEMA.field(0).type, len(values), [None, pa.py_buffer(micros)])
