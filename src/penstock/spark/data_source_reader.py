# SPDX-License-Identifier: Apache-2.0
"""PySpark's Python data sources as sources of streaming queries: `DataSourceStreamReader` and the simple one.

One task plans and reads: it asks for the latest offset, plans the partitions of the range and reads one after the
other. The range, the partition and the rows of it that were given are the position in checkpoints, so a later attempt
plans the same range again, as Spark does after a restart. A source must then give the same partitions and rows.
Offsets go through JSON, as in Spark, so their keys are texts. `commit(end)` is called when a checkpoint is complete
that lies behind the range.

All of the source's code runs in a thread that reads ahead, so a call that waits holds no barrier up. Rows become
Arrow batches by PySpark's own code, and batches pass as they are.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from penstock.errors import PlanError
from penstock.operators.functions import ending_by_itself
from penstock.spark.data_sources import MadeSource
from penstock.stream.pace import STEP_BYTES
from penstock.stream.partitioned_source import PartitionedReader, PartitionedSource
from penstock.stream.read_ahead import Read, RowsReadAhead

_POLL_SECONDS = 0.01
_FIRST_ROWS = 16
_GROWTH = 16
_PARTITION = "all"
_Offset = Sequence[Any]
"""The range's start and, if known, its end, both as JSON; the partition in it, and the rows given of that."""


@dataclass(frozen=True, slots=True)
class DataSourceStream:
    """A Python data source of a session, as a source of a query; `batch_rows` is the session's."""

    made: MadeSource
    batch_rows: int
    is_available_now: bool = False
    begun: str | None = None
    """The offset at which the query began, as JSON."""

    def first_position(self) -> bytes:
        """The source's `initialOffset()` now, asked once for each query, as in Spark."""
        planner = _planner(self.made.loaded(), self.made)
        try:
            return json.dumps(planner.initial()).encode()
        finally:
            planner.stop()

    def begun_at(self, position: bytes) -> DataSourceStream:
        """The same source, of a query that began there."""
        return replace(self, begun=position.decode())

    def available_now(self) -> DataSourceStream:
        """Up to what the source calls available, or one range where it has no word for that: as in Spark."""
        return replace(self, is_available_now=True)

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return self.made.name

    @property
    def reads(self) -> str:
        """The input that its positions in checkpoints are of."""
        return f"data source {self.made.name}"

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return self.made.schema

    def splits(self) -> int | None:
        """One task plans and reads."""
        return 1

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> PartitionedReader:
        """The reader, which goes on in the range in which the last one was."""
        rows = _OnePartition(self)
        return PartitionedSource(rows, _POLL_SECONDS, (_PARTITION,)).open(subtask, parallelism, restored)


class _OnePartition:
    """The source as one partition, whose offsets are places in ranges."""

    def __init__(self, stream: DataSourceStream) -> None:
        self._stream = stream
        self.schema = stream.schema
        self.name = stream.name

    def partitions(self) -> Sequence[str]:
        return (_PARTITION,)

    def unit_of(self, offset: _Offset | None, given: int) -> object:
        """The range whose rows are read: it is one batch, as in Spark. None: it is between two."""
        return None if offset is None or offset[1] is None else offset[0]

    def beginning(self) -> _Offset | None:
        """The place at which the query began."""
        return None if self._stream.begun is None else [self._stream.begun, None, 0, 0]

    def read(self, partition: str, offset: _Offset | None) -> RowsReadAhead:
        return RowsReadAhead(partial(_Reading, self._stream, offset), offset, self.name)


class _Reading:
    """The source's code at work, in a thread of its own."""

    def __init__(self, stream: DataSourceStream, offset: _Offset | None) -> None:
        source = stream.made.loaded()
        self._convert = partial(records_to_arrow_batches, return_type=stream.made.types, data_source=source)
        self._most_rows = stream.batch_rows
        self._schema = stream.schema
        nulls = [pa.nulls(0, field.type) for field in self._schema]
        self._nothing = pa.RecordBatch.from_arrays(nulls, schema=self._schema)
        self._planner = _planner(source, stream.made)
        self._begin = offset
        self._is_endless = not stream.is_available_now
        self._ranges = math.inf if self._is_endless or self._planner.bounded() else 1
        """The most ranges that may be begun."""
        self._committed = stream.begun  # nothing is in front of it

    def read(self) -> Iterator[Read]:
        """The rows of one range after the other."""
        if self._begin is None:
            self._committed = start = json.dumps(self._planner.initial())
            end, number, given = None, 0, 0
            yield self._moved([start, None, 0, 0])
        else:
            start, end, number, given = self._begin
        while self._ranges > 0 or end is not None:
            self._ranges -= end is None
            partitions = self._planner.planned(start, end)
            if partitions is None:
                if not self._is_endless:
                    return
                yield None, [start, None, 0, 0]
                continue
            end = self._planner.end
            yield self._moved([start, end, number, given])  # a position in the range's first rows must know its end
            for rows in partitions[number:]:
                for batch in self._behind(self._batches(rows()), given):
                    given += batch.num_rows
                    yield batch, [start, end, number, given]
                number, given = number + 1, 0
            start, end, number = end, None, 0
            yield self._moved([start, None, 0, 0])

    def _batches(self, rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        """Rows as batches, few at first: the bytes of one say how many rows the next one has."""
        now = min(_FIRST_ROWS, self._most_rows)
        while True:
            last = None
            for last in self._convert(itertools.islice(rows, now), max_arrow_batch_size=now):
                yield last
            if last is None:
                return
            now = min(self._most_rows, _GROWTH * now, max(1, STEP_BYTES * last.num_rows // max(1, last.nbytes)))

    def completed(self, offset: _Offset | None) -> None:
        """Tell the source of the ranges that lie in front of a complete checkpoint."""
        if offset is not None and offset[0] != self._committed:
            self._committed = offset[0]
            self._planner.commit(offset[0])

    def close(self) -> None:
        self._planner.stop()

    def _moved(self, offset: _Offset) -> Read:
        """A new offset, without rows."""
        return self._nothing, offset

    @staticmethod
    def _behind(batches: Iterator[pa.RecordBatch], given: int) -> Iterator[pa.RecordBatch]:
        """The rows after so many."""
        for batch in batches:
            skipped = min(given, batch.num_rows)
            given -= skipped
            if batch.num_rows > skipped:
                yield batch.slice(skipped)


class _Planner:
    """A reader that plans partitions, and another one of the same source that reads them, as in Spark."""

    def __init__(self, source: DataSource, made: MadeSource) -> None:
        self._planner = source.streamReader(schema=made.types)
        self._reader = source.streamReader(schema=made.types)
        self._name = made.name
        self.end = ""

    def initial(self) -> Any:
        return self._planner.initialOffset()

    def bounded(self) -> bool:
        """Have the source end at what is available now; whether it can."""
        return _bounded(self._planner)

    def planned(self, start: str, end: str | None) -> list[Any] | None:
        """Functions that give the rows of each partition of a range; None where there is nothing behind its start."""
        found = json.dumps(self._latest(json.loads(start))) if end is None else end
        if found == start:
            return None
        self.end = found
        partitions = self._planner.partitions(json.loads(start), json.loads(found))
        return [partial(self._rows, partition) for partition in partitions]

    def commit(self, offset: str) -> None:
        self._planner.commit(json.loads(offset))

    def stop(self) -> None:
        self._planner.stop()

    def _latest(self, start: Any) -> Any:
        if not inspect.signature(self._planner.latestOffset).parameters:  # as it was before Spark 4.2
            return self._planner.latestOffset()
        return self._planner.latestOffset(start, self._planner.getDefaultReadLimit())

    def _rows(self, partition: Any) -> Iterator[Any]:
        return _an_iterator(self._reader.read(partition), self._name, "read")


class _SimplePlanner:
    """A simple reader, which gives the rows together with the end of their range."""

    def __init__(self, source: DataSource, made: MadeSource) -> None:
        self._reader: SimpleDataSourceStreamReader = source.simpleStreamReader(schema=made.types)
        self._name = made.name
        self.end = ""

    def initial(self) -> Any:
        return self._reader.initialOffset()

    def bounded(self) -> bool:
        """As above."""
        return _bounded(self._reader)

    def planned(self, start: str, end: str | None) -> list[Any] | None:
        """As above, with one partition; the rows of a range that was begun are asked for by both ends."""
        if end is not None:
            self.end = end
            return [partial(self._between, json.loads(start), json.loads(end))]
        rows, found = self._reader.read(json.loads(start))
        self.end = json.dumps(found)
        rows = _an_iterator(rows, self._name, "read")
        if self.end != start:
            return [lambda: rows]
        if list(itertools.islice(rows, 1)):
            raise PlanError(
                f"{self._name}: read() gives rows, and the offset stays at {start}: they would come again"
            )
        return None

    def commit(self, offset: str) -> None:
        self._reader.commit(json.loads(offset))

    def stop(self) -> None:
        """Nothing: simple readers know no end."""

    def _between(self, start: Any, end: Any) -> Iterator[Any]:
        return _an_iterator(self._reader.readBetweenOffsets(start, end), self._name, "readBetweenOffsets")


def _bounded(reader: Any) -> bool:
    prepare = getattr(reader, "prepareForTriggerAvailableNow", None)
    if prepare is not None:
        prepare()
    return prepare is not None


def _planner(source: DataSource, made: MadeSource) -> _Planner | _SimplePlanner:
    try:
        return _Planner(source, made)
    except PySparkNotImplementedError:
        return _SimplePlanner(source, made)


def _an_iterator(rows: Any, name: str, method: str) -> Iterator[Any]:
    if not isinstance(rows, Iterator):
        raise PlanError(f"{name}: {method}() gives {type(rows).__name__}: it gives an iterator, as by iter(...)")
    return iter(ending_by_itself(rows, f"{name}: {method}()"))
