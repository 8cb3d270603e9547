# SPDX-License-Identifier: Apache-2.0
"""The calls of PySpark's processors: one key at a time, rows as `Row` objects or as frames.

A call has all rows of the key that the task has at hand; a key's rows may come in several calls. Python statements
for each key and row are what this contract asks for; what can be done for a whole batch is.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import SchemaError
from penstock.operators.frames import batch_of as batch_of_frame
from penstock.operators.frames import concatenated, frame_of, is_frame
from penstock.operators.functions import ending_by_itself
from penstock.operators.keys import stable_order
from penstock.operators.zones import batches_in
from penstock.record.joining import joined
from penstock.record.layout import int64_array
from penstock.stream.state.batch_states import Moment
from penstock.stream.state.declarations import Declarations
from penstock.stream.state.keys import Keys
from penstock.stream.state.python_values import RowMaker, Value, batch_of, may_change, tuples_of
from penstock.stream.state.row_handle import RowHandle
from penstock.stream.state.row_states import Cursor
from penstock.stream.state.times import ExpiredTimerInfo, TimerValues

Times = npt.NDArray[np.int64]


class KeyedRows(Protocol):
    """The form in which rows are shown to a processor, and taken from it."""

    def keys(self, keys: pa.RecordBatch) -> list[Value]:
        """The keys as it gets them."""

    def slices(self, batch: pa.RecordBatch, ends: list[int]) -> Iterator[Iterator[Any]]:
        """The rows of key after key as it gets them."""

    def own(self, given: Iterable[Any]) -> Iterable[Any]:
        """The rows of one call, as they are now: the processor may change what it gave as soon as it goes on."""

    def batches(self, given: list[Any]) -> Iterator[pa.RecordBatch]:
        """All that its calls gave, in order."""


class KeyByKeyCalls:
    """A processor that is called for each key."""

    most_timers = 1 << 11
    has_keys_once = False

    def __init__(self, processor: Any, shown: KeyedRows, time_mode: str, make_rows: RowMaker) -> None:
        self._processor = processor
        self._shown = shown
        self._time_mode = time_mode
        self._make_rows = make_rows
        self._cursor: Cursor | None = None
        self._handle: RowHandle | None = None

    def init(self, declarations: Declarations, moment: Moment) -> None:
        """Have the processor declare its states."""
        self._cursor = Cursor(moment)
        self._handle = RowHandle(declarations, self._cursor, self._time_mode, self._make_rows)
        self._processor.init(self._handle)

    def rows(self, keys: Keys, batch: pa.RecordBatch, times: TimerValues) -> Iterable[pa.RecordBatch]:
        """The rows that a batch gives."""
        handle, own = self._processor.handleInputRows, self._shown.own
        given: list[Any] = []
        cursor = self._begun(keys)
        with _collector_paused():
            for key, rows in self._by_key(keys, batch):
                given += own(handle(key, rows, times) or ())
                cursor.at += 1
            self._put_back()
            return list(self._shown.batches(given))

    def timers(self, keys: Keys, expiries: Times, times: TimerValues, until: int | None) -> Iterable[pa.RecordBatch]:
        """The rows that expired timers give."""
        assert self._handle is not None  # noqa: S101 - initialised before
        handle, timers = self._processor.handleExpiredTimer, self._handle.timers
        own = self._shown.own
        given: list[Any] = []
        cursor = self._begun(keys)
        with _collector_paused():
            named = self._shown.keys(keys.table)
            for expiry in timers.fired(keys.groups.tolist(), expiries.tolist(), until):
                given += own(handle(named[cursor.at], times, ExpiredTimerInfo(expiry)) or ())
            self._put_back()
            return list(self._shown.batches(given))

    def shared(self, batch: pa.RecordBatch, times: TimerValues) -> Iterable[pa.RecordBatch]:
        """The rows that a batch gives which comes to all tasks."""
        (rows,) = self._shown.slices(batch, [batch.num_rows])
        return self._shown.batches(list(self._shown.own(self._processor.handleBroadcastRows(rows, times) or ())))

    def initial(self, keys: Keys, batch: pa.RecordBatch, times: TimerValues) -> None:
        """Give rows of the initial state."""
        cursor = self._begun(keys)
        for key, rows in self._by_key(keys, batch):
            for row in rows:
                self._processor.handleInitialState(key, row, times)
            cursor.at += 1
        self._put_back()

    def close(self) -> None:
        """Have the processor clean up."""
        self._processor.close()

    def _begun(self, keys: Keys) -> Cursor:
        assert self._cursor is not None  # noqa: S101 - initialised before
        self._cursor.keys, self._cursor.at = keys, 0
        return self._cursor

    def _by_key(self, keys: Keys, batch: pa.RecordBatch) -> Iterator[tuple[Value, Iterator[Any]]]:
        order = stable_order(keys.groups, len(keys))
        ends = np.cumsum(np.bincount(keys.groups, minlength=len(keys))).tolist()
        rows = self._shown.slices(batch.take(int64_array(order)), ends)
        return zip(self._shown.keys(keys.table), rows, strict=True)

    def _put_back(self) -> None:
        assert self._cursor is not None  # noqa: S101 - initialised before
        assert self._handle is not None  # noqa: S101
        for each in self._handle.buffered:
            each.put_back()
        self._cursor.keys = None


class AsRows:
    """Rows as `Row` objects, of `transformWithState`."""

    def __init__(self, schema: pa.Schema, name: str, timezone: str, row_maker: RowMaker) -> None:
        self._schema = schema
        self._name = name
        self._timezone = timezone
        self._row_maker = row_maker
        self._nested = any(pt.is_nested(field.type) for field in schema)
        self._may_change = may_change(schema)
        self._makers: dict[tuple[str, ...], Callable[[Value], Any]] = {}

    def keys(self, keys: pa.RecordBatch) -> list[Value]:
        """The keys as tuples."""
        return list(tuples_of(_in_zone(keys, self._timezone))) if keys.num_columns else [()] * keys.num_rows

    def slices(self, batch: pa.RecordBatch, ends: list[int]) -> Iterator[Iterator[Any]]:
        """The rows of key after key."""
        make = self._maker(tuple(batch.schema.names))
        rows = [make(values) for values in tuples_of(_in_zone(batch, self._timezone))]
        start = 0
        for end in ends:
            yield iter(rows[start:end])
            start = end

    def own(self, given: Iterable[Any]) -> Iterable[Any]:
        """The rows; with lists and bytes of their own where there are any."""
        given = ending_by_itself(given, self._name)
        return map(copy.deepcopy, given) if self._may_change else given

    def batches(self, given: list[Any]) -> Iterator[pa.RecordBatch]:
        """All rows that its calls gave."""
        if given:
            yield batch_of(self._values(given), self._schema, self._name)

    def _maker(self, names: tuple[str, ...]) -> Callable[[Value], Any]:
        if names not in self._makers:
            self._makers[names] = self._row_maker(list(names))
        return self._makers[names]

    def _values(self, given: list[Any]) -> list[Value]:
        """The values of rows by the names of columns: one that is not there is null, as in PySpark."""
        names = self._schema.names
        if not self._nested and all(getattr(row, "__fields__", None) == names for row in given):
            return given
        values = []
        for row in given:
            if not hasattr(row, "asDict"):
                raise SchemaError(
                    f"{self._name}: a processor gives an iterator of Row, not of {type(row).__name__}: yield "
                    f"Row({', '.join(f'{name}=...' for name in names)})"
                )
            found = row.asDict(recursive=True)
            values.append(tuple([found.get(name) for name in names]))
        return values


class AsFrames:
    """Rows as frames, of `transformWithStateInPandas`."""

    def __init__(self, schema: pa.Schema, name: str, timezone: str) -> None:
        self._schema = schema
        self._name = name
        self._timezone = timezone

    def keys(self, keys: pa.RecordBatch) -> list[Value]:
        """The keys as tuples of what stands in the frame's key columns."""
        if not keys.num_columns:
            return [()] * keys.num_rows
        return list(frame_of(keys, self._timezone).itertuples(index=False, name=None))

    def slices(self, batch: pa.RecordBatch, ends: list[int]) -> Iterator[Iterator[Any]]:
        """The rows of key after key, one frame each."""
        frame = frame_of(batch, self._timezone)
        start = 0
        for end in ends:
            part = frame.iloc[start:end]
            part.index = range(end - start)
            yield iter((part,))
            start = end

    def own(self, given: Iterable[Any]) -> Iterable[Any]:
        """The frames with values of their own; lists and Arrow arrays in them are taken to stay as they are."""
        return (frame.copy() if is_frame(frame) else frame for frame in ending_by_itself(given, self._name))

    def batches(self, given: list[Any]) -> Iterator[pa.RecordBatch]:
        """All rows of the frames that its calls gave."""
        for frame in given:
            if not is_frame(frame):
                raise SchemaError(
                    f"{self._name}: a processor gives an iterator of pandas.DataFrame, not of {type(frame).__name__}"
                )
        made = (batch_of_frame(frame, self._schema, self._timezone, self._name) for frame in concatenated(given))
        yield from joined(list(made))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Many objects live until the batch is done, and the collector would look at them again and again.

    With it rows of 10,000 keys take three times as long.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _in_zone(batch: pa.RecordBatch, timezone: str) -> pa.RecordBatch:
    return next(batches_in(iter((batch,)), timezone))
