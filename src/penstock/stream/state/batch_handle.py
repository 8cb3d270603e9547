# SPDX-License-Identifier: Apache-2.0
"""Batch-level processors: the class that users derive, and the handle to its states and timers."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import PlanError
from penstock.record.layout import int64_array
from penstock.stream.state.batch_states import (
    BatchListState,
    BatchMapState,
    BatchValueState,
    Groups,
    Moment,
    OwnedRows,
    numbers_of,
)
from penstock.stream.state.broadcast_states import SharedMap
from penstock.stream.state.declarations import Declarations
from penstock.stream.state.keys import Keys
from penstock.stream.state.times import NONE


class BatchHandle:
    """The way of a batch-level processor to its states and timers."""

    def __init__(self, declarations: Declarations, moment: Moment, time_mode: str) -> None:
        self._declarations = declarations
        self._moment = moment
        self._time_mode = time_mode

    def getValueState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> BatchValueState:
        """Declare one value for each key."""
        return BatchValueState(self._moment, self._declarations.value(stateName, schema, ttlDurationMs))

    def getListState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> BatchListState:
        """Declare a list for each key."""
        return BatchListState(self._moment, self._declarations.rows(stateName, schema, ttlDurationMs))

    def getMapState(
        self, stateName: str, userKeySchema: object, valueSchema: object, ttlDurationMs: int | None = None
    ) -> BatchMapState:
        """Declare a map for each key."""
        spec = self._declarations.entries(stateName, userKeySchema, valueSchema, ttlDurationMs)
        return BatchMapState(self._moment, spec)

    def getBroadcastState(self, stateName: str, userKeySchema: object, valueSchema: object) -> SharedMap:
        """Declare a map that is the same in all tasks."""
        return SharedMap(self._moment, self._declarations.shared_entries(stateName, userKeySchema, valueSchema))

    def deleteIfExists(self, stateName: str) -> None:
        """Forget a state that the checkpoint may hold."""
        self._declarations.drop(stateName)

    def registerTimers(self, keys: Keys, groups: Groups, expiryTimestampsMs: object) -> None:
        """Have timers fire at these times; `groups` says the number of each one's key."""
        self._refuse_none("registerTimers")
        self._moment.store.timers.register(keys.slots[numbers_of(groups)], numbers_of(expiryTimestampsMs))

    def deleteTimers(self, keys: Keys, groups: Groups, expiryTimestampsMs: object) -> None:
        """Have timers not fire."""
        self._moment.store.timers.delete(keys.slots[numbers_of(groups)], numbers_of(expiryTimestampsMs))

    def listTimers(self, keys: Keys) -> OwnedRows:
        """The timers of the keys, key after key and in order of time."""
        owners, times = self._moment.store.timers.of(keys.slots)
        return OwnedRows(owners, pa.RecordBatch.from_arrays([int64_array(times)], names=["expiryTimeInMs"]))

    def _refuse_none(self, verb: str) -> None:
        if self._time_mode == NONE:
            raise PlanError(f"{verb}: timers need a time: say timeMode='ProcessingTime' or 'EventTime'")


class BatchProcessor:
    """A processor of whole batches: derive one, and give it to `transformWithStateInArrow`.

    It is called with all rows that a task has at hand, and with their keys. It may be called with any number of rows,
    and a key's rows may come in several calls.
    """

    def init(self, handle: BatchHandle) -> None:
        """Declare states; called once by each task, before any row."""

    def handleBatch(self, keys: Keys, rows: pa.RecordBatch, timerValues: object) -> object:
        """The rows that a batch gives: a RecordBatch, a Table, an iterable of them, or None."""
        raise NotImplementedError

    def handleExpiredTimers(self, keys: Keys, expiryTimesInMs: pa.Array, timerValues: object) -> object:
        """The rows that expired timers give; `keys.groups` says whose each one is. They are in order of time."""
        return None

    def handleBroadcast(self, rows: pa.RecordBatch, timerValues: object) -> object:
        """The rows that rows of the second stream give, which come to all tasks: they write the broadcast state."""
        return None

    def handleInitialState(self, keys: Keys, rows: pa.RecordBatch, timerValues: object) -> None:
        """Take rows of the initial state; called before any other row, where no checkpoint is gone on from."""

    def close(self) -> None:
        """Clean up; called once, also after a failure."""
