# SPDX-License-Identifier: Apache-2.0
"""The calls of a processor: the protocol of its forms, and the one for whole batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.operators.conform import Conformer
from penstock.operators.functions import ending_by_itself
from penstock.operators.zones import batches_in
from penstock.record.copies import Copies
from penstock.record.layout import int64_array
from penstock.stream.state.batch_handle import BatchHandle
from penstock.stream.state.batch_states import Moment
from penstock.stream.state.declarations import Declarations
from penstock.stream.state.keys import Keys
from penstock.stream.state.times import TimerValues

Times = npt.NDArray[np.int64]


class ProcessorCalls(Protocol):
    """One form of a processor, for one task."""

    @property
    def most_timers(self) -> int:
        """The number of timers that it is to be called with at once."""

    @property
    def has_keys_once(self) -> bool:
        """True if a call is to have one timer of a key, as it can't see what the timers before would do."""

    def init(self, declarations: Declarations, moment: Moment) -> None:
        """Have the processor declare its states."""

    def rows(self, keys: Keys, batch: pa.RecordBatch, times: TimerValues) -> Iterable[pa.RecordBatch]:
        """The rows that a batch gives."""

    def timers(self, keys: Keys, expiries: Times, times: TimerValues, until: int | None) -> Iterable[pa.RecordBatch]:
        """The rows that expired timers give, which are there in order of time.

        A form that calls for each timer fires those too that the calls register for times up to `until`.
        """

    def shared(self, batch: pa.RecordBatch, times: TimerValues) -> Iterable[pa.RecordBatch]:
        """The rows that a batch gives which comes to all tasks."""

    def initial(self, keys: Keys, batch: pa.RecordBatch, times: TimerValues) -> None:
        """Give rows of the initial state."""

    def close(self) -> None:
        """Have the processor clean up."""


class BatchCalls:
    """A processor that is called with whole batches."""

    most_timers = 1 << 14
    has_keys_once = True

    def __init__(self, processor: Any, schema: pa.Schema, name: str, timezone: str, time_mode: str) -> None:
        self._processor = processor
        self._name = name
        self._timezone = timezone
        self._time_mode = time_mode
        self._conformer = Conformer(schema, name)
        self._copies = Copies()
        """A processor may write into what it gave, and sinks hold rows for long."""

    def init(self, declarations: Declarations, moment: Moment) -> None:
        """Have the processor declare its states."""
        self._processor.init(BatchHandle(declarations, moment, self._time_mode))

    def rows(self, keys: Keys, batch: pa.RecordBatch, times: TimerValues) -> Iterable[pa.RecordBatch]:
        """The rows that a batch gives."""
        return self._given(self._processor.handleBatch(keys, self._shown(batch), times))

    def timers(self, keys: Keys, expiries: Times, times: TimerValues, until: int | None) -> Iterable[pa.RecordBatch]:
        """The rows that expired timers give; all come in one call, so none fires among them."""
        return self._given(self._processor.handleExpiredTimers(keys, int64_array(expiries), times))

    def initial(self, keys: Keys, batch: pa.RecordBatch, times: TimerValues) -> None:
        """Give rows of the initial state."""
        self._processor.handleInitialState(keys, self._shown(batch), times)

    def shared(self, batch: pa.RecordBatch, times: TimerValues) -> Iterable[pa.RecordBatch]:
        """The rows that a batch gives which comes to all tasks."""
        return self._given(self._processor.handleBroadcast(self._shown(batch), times))

    def close(self) -> None:
        """Have the processor clean up."""
        self._processor.close()

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return next(batches_in(iter((batch,)), self._timezone))

    def _given(self, result: object) -> Iterator[pa.RecordBatch]:
        if result is None:
            return
        for item in (result,) if isinstance(result, pa.RecordBatch | pa.Table) else self._iterated(result):
            if not isinstance(item, pa.RecordBatch | pa.Table):
                raise self._error(item)
            for batch in item.to_batches() if isinstance(item, pa.Table) else (item,):
                yield self._copies.of(self._conformer.conform(batch))

    def _iterated(self, result: object) -> Iterator[Any]:
        if not isinstance(result, Iterable):
            raise self._error(result)
        return iter(ending_by_itself(result, self._name))

    def _error(self, item: object) -> SchemaError:
        return SchemaError(
            f"{self._name}: a batch-level processor gives a pyarrow.RecordBatch, a Table, an iterable of them, or "
            f"None, not {type(item).__name__}"
        )
