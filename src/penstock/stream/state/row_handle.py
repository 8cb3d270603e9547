# SPDX-License-Identifier: Apache-2.0
"""The handle that a processor of PySpark's is given: its states and its timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import TypeVar

import numpy as np

from penstock.errors import PlanError
from penstock.stream.state.broadcast_states import SharedDictionary
from penstock.stream.state.declarations import Declarations
from penstock.stream.state.python_values import RowMaker
from penstock.stream.state.row_states import Buffered, Cursor, ListState, MapState, ValueState
from penstock.stream.state.times import NONE
from penstock.stream.state.variables import VariableSpec


class TimerCalls:
    """The timers of the key.

    While timers fire, those of the batch have left the store, and wait here for their calls.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._kept: list[list[int]] | None = None
        self._changed: dict[int, dict[int, bool]] = {}
        """By the place of a key and time: True is one that was registered, False one that was deleted."""
        self._firing: tuple[list[int], list[int]] | None = None
        """The places and times of the timers of the batch, of which so many have had their turn."""
        self._turn = 0
        self._waiting: dict[int, set[int]] | None = None
        """The times of the others by place; None until a call asks."""
        self._until: int | None = None
        self._early: list[tuple[int, int]] = []
        """Times and places of timers that calls have registered, and that fire in this batch."""

    def put(self, time: int, *, waits: bool) -> None:
        """Have a timer fire, or not."""
        at, time = self._cursor.at, int(time)
        if self._firing is not None:
            waiting = self._waiting_times(at)
            if time in waiting:
                if not waits:
                    waiting.remove(time)
                return
            if waits and self._until is not None and time <= self._until:
                heappush(self._early, (time, at))
        self._changed.setdefault(at, {})[time] = waits

    def fired(self, places: list[int], times: list[int], until: int | None) -> Iterator[int]:
        """Have timers fire one after the other: the time of each, whose key is that of the cursor then.

        `places` and `times` are those of the batch, in order of time. One that a call registers for a time up to
        `until` fires in its turn. One that its own call registers again is gone after that, as in PySpark.
        """
        self._firing, self._until = (places, times), until
        for self._turn, (at, time) in enumerate(zip(places, times, strict=True), start=1):
            if self._early:
                yield from self._fired_early(time)
            if self._waiting is not None:
                if time not in self._waiting[at]:
                    continue
                self._waiting[at].remove(time)
            self._cursor.at = at
            yield time
            if self._changed:
                self._forget_again(at, time)
        yield from self._fired_early(None)
        self._firing = self._waiting = self._until = None

    def _fired_early(self, before: int | None) -> Iterator[int]:
        while self._early and (before is None or self._early[0][0] < before):
            time, at = heappop(self._early)
            if self._changed[at].get(time):
                self._changed[at][time] = False
                self._cursor.at = at
                yield time
                self._forget_again(at, time)

    def _forget_again(self, at: int, time: int) -> None:
        changed = self._changed.get(at)
        if changed is not None and changed.get(time):
            changed[time] = False

    def _waiting_times(self, at: int) -> set[int]:
        """The times of the batch's timers of a key that have not fired."""
        if self._firing is None:
            return set()
        if self._waiting is None:
            self._waiting = {}
            places, times = self._firing
            for place, time in zip(places[self._turn :], times[self._turn :], strict=True):
                self._waiting.setdefault(place, set()).add(time)
        return self._waiting.setdefault(at, set())

    def list(self) -> Iterator[int]:
        """The times of those that wait, in order."""
        keys, at = self._cursor.batch, self._cursor.at
        if self._kept is None:
            self._kept = [[] for _ in range(len(keys))]
            owners, times = self._cursor.moment.store.timers.of(keys.slots)
            for owner, time in zip(owners.tolist(), times.tolist(), strict=True):
                self._kept[owner].append(time)
        changes = self._changed.get(at, {})
        waiting = {*self._kept[at], *self._waiting_times(at), *(time for time, waits in changes.items() if waits)}
        return iter(sorted(time for time in waiting if changes.get(time, True)))

    def put_back(self) -> None:
        """Put the changes back."""
        self._kept = None
        if not self._changed:
            return
        flat = [(at, time, waits) for at, times in self._changed.items() for time, waits in times.items()]
        self._changed = {}
        slots, timers = self._cursor.batch.slots, self._cursor.moment.store.timers
        places, times, waits = (np.array(column) for column in zip(*flat, strict=True))
        timers.delete(slots[places[~waits]], times[~waits])
        timers.register(slots[places[waits]], times[waits])


State = TypeVar("State", bound=Buffered)


class RowHandle:
    """The way of a processor of PySpark's to its states and timers: `StatefulProcessorHandle`."""

    def __init__(self, declarations: Declarations, cursor: Cursor, time_mode: str, make_rows: RowMaker) -> None:
        self._declarations = declarations
        self._cursor = cursor
        self._make_rows = make_rows
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
        return SharedDictionary(self._cursor.moment, spec, self._make_rows)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have a timer of the key fire at a time."""
        self._refuse_none("registerTimer")
        self.timers.put(expiryTimestampMs, waits=True)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Have a timer of the key not fire."""
        self._refuse_none("deleteTimer")
        self.timers.put(expiryTimestampMs, waits=False)

    def listTimers(self) -> Iterator[int]:
        """The times of the key's timers, in order."""
        self._refuse_none("listTimers")
        return self.timers.list()

    def deleteIfExists(self, stateName: str) -> None:
        """Forget a state that the checkpoint may hold."""
        self._declarations.drop(stateName)

    def _kept(self, make: Callable[[Cursor, VariableSpec, RowMaker], State], spec: VariableSpec) -> State:
        state = make(self._cursor, spec, self._make_rows)
        self.buffered.append(state)
        return state

    def _refuse_none(self, verb: str) -> None:
        if self._time_mode == NONE:
            raise PlanError(f"{verb}: timers need a time: say timeMode='ProcessingTime' or 'EventTime'")
