# SPDX-License-Identifier: Apache-2.0
"""The handle that a processor of PySpark's is given: its states and its timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from penstock.errors import PlanError
from penstock.stream.state.broadcast_states import SharedDictionary
from penstock.stream.state.declarations import Declarations
from penstock.stream.state.row_states import Buffered, Cursor, ListState, MapState, ValueState
from penstock.stream.state.times import NONE
from penstock.stream.state.variables import VariableSpec


class TimerCalls:
    """The timers of the key."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._kept: list[list[int]] | None = None
        self._changed: dict[tuple[int, int], bool] = {}

    def set(self, time: int, *, waits: bool) -> None:
        """Have a timer fire, or not."""
        self._changed[self._cursor.at, int(time)] = waits

    def is_deleted(self, time: int) -> bool:
        """Tell if a call of this batch has deleted one."""
        return self._changed.get((self._cursor.at, time)) is False

    def list(self) -> Iterator[int]:
        """The times of those that wait, in order."""
        keys, at = self._cursor.batch, self._cursor.at
        if self._kept is None:
            self._kept = [[] for _ in range(len(keys))]
            owners, times = self._cursor.moment.store.timers.of(keys.slots)
            for owner, time in zip(owners.tolist(), times.tolist(), strict=True):
                self._kept[owner].append(time)
        changes = {time: waits for (place, time), waits in self._changed.items() if place == at}
        waiting = {*self._kept[at], *(time for time, waits in changes.items() if waits)}
        return iter(sorted(time for time in waiting if changes.get(time, True)))

    def put_back(self) -> None:
        """Put the changes back."""
        self._kept = None
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        slots, timers = self._cursor.batch.slots, self._cursor.moment.store.timers
        places = np.array(list(changed), np.int64).reshape(-1, 2)
        waits = np.array(list(changed.values()), np.bool_)
        timers.delete(slots[places[~waits, 0]], np.ascontiguousarray(places[~waits, 1]))
        timers.register(slots[places[waits, 0]], np.ascontiguousarray(places[waits, 1]))


State = TypeVar("State", bound=Buffered)


class RowHandle:
    """The way of a processor of PySpark's to its states and timers: `StatefulProcessorHandle`."""

    def __init__(self, declarations: Declarations, cursor: Cursor, time_mode: str) -> None:
        self._declarations = declarations
        self._cursor = cursor
        self._time_mode = time_mode
        self.timers = TimerCalls(cursor)
        self.buffered: list[Buffered] = [self.timers]
        """All that is to be put back after a batch."""

    def getValueState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> ValueState:
        """Declare one value for each key."""
        return self._kept(ValueState, self._declarations.value(stateName, schema, ttlDurationMs))

    def getListState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> ListState:
        """Declare a list for each key."""
        return self._kept(ListState, self._declarations.rows(stateName, schema, ttlDurationMs))

    def getMapState(
        self, stateName: str, userKeySchema: object, valueSchema: object, ttlDurationMs: int | None = None
    ) -> MapState:
        """Declare a map for each key."""
        return self._kept(MapState, self._declarations.entries(stateName, userKeySchema, valueSchema, ttlDurationMs))

    def getBroadcastState(self, stateName: str, userKeySchema: object, valueSchema: object) -> SharedDictionary:
        """Declare a map that is the same in all tasks."""
        spec = self._declarations.shared_entries(stateName, userKeySchema, valueSchema)
        return SharedDictionary(self._cursor.moment, spec)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have a timer of the key fire at a time."""
        self._refuse_none("registerTimer")
        self.timers.set(expiryTimestampMs, waits=True)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Have a timer of the key not fire."""
        self._refuse_none("deleteTimer")
        self.timers.set(expiryTimestampMs, waits=False)

    def listTimers(self) -> Iterator[int]:
        """The times of the key's timers, in order."""
        self._refuse_none("listTimers")
        return self.timers.list()

    def deleteIfExists(self, stateName: str) -> None:
        """Forget a state that the checkpoint may hold."""
        self._declarations.drop(stateName)

    def _kept(self, make: Callable[[Cursor, VariableSpec], State], spec: VariableSpec) -> State:
        state = make(self._cursor, spec)
        self.buffered.append(state)
        return state

    def _refuse_none(self, verb: str) -> None:
        if self._time_mode == NONE:
            raise PlanError(f"{verb}: timers need a time: say timeMode='ProcessingTime' or 'EventTime'")
