# SPDX-License-Identifier: Apache-2.0
"""A processor that does what its rows say, and the same processor over dictionaries: the oracle of states and timers.

It knows nothing but PySpark's handle, so the two differ by the handle alone. A timer fires once, in order of time,
and is not there any more when its handler runs; one that a handler registers and that is due fires in the same
round. A state with a time to live is gone that many milliseconds after it was put.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from penstock_torture.stages.rules import Key, Keyed, Oracle
from penstock_torture.stages.values import Row

OPS = ("add", "append", "put", "remove", "clear", "timer", "untimer", "show")
_LAST = 400
"""No handler registers another timer that fires later than so many milliseconds."""


class Machine:
    """Does for each row what its column `op` says, with `x` and `y`, and gives a row with all of its state."""

    def __init__(self, keys: Sequence[str], ttl: int | None, *, has_timers: bool) -> None:
        self._keys = tuple(keys)
        self._ttl = ttl
        self._has_timers = has_timers

    def init(self, handle: Any) -> None:
        """Declare a state of each kind."""
        self._handle = handle
        lives = {} if self._ttl is None else {"ttlDurationMs": self._ttl}
        self._value = handle.getValueState("value", "x long", **lives)
        self._list = handle.getListState("list", "x long", **lives)
        self._map = handle.getMapState("map", "x long", "y long", **lives)

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:
        """One row after the other."""
        for row in rows:
            self._do(row.op, row.x, row.y)
        yield self._state(key, "rows")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Give the state; some times register, delete or clear."""
        time = expiredTimerInfo.getExpiryTimeInMs()
        if time % 5 == 1 and time < _LAST:
            self._handle.registerTimer(time + 7)
        elif time % 5 == 2:
            self._handle.deleteTimer(time + 1)
        elif time % 5 == 3:
            self._map.clear()
        yield self._state(key, f"timer {time}")

    def close(self) -> None:
        """Nothing is held."""

    def _do(self, op: str, x: int, y: int) -> None:
        if op == "add":
            self._value.update(((self._value.get()[0] if self._value.exists() else 0) + x,))
        elif op == "append":
            self._list.appendValue((x,))
        elif op == "put":
            self._map.updateValue((x,), (y,))
        elif op == "remove":
            self._map.removeKey((x,))
        elif op == "clear":
            (self._value, self._list, self._map)[x % 3].clear()
        elif op == "timer":
            self._handle.registerTimer(y)
        elif op == "untimer":
            self._handle.deleteTimer(y)

    def _state(self, key: Any, what: str) -> Any:
        value = self._value.get()[0] if self._value.exists() else None
        listed = [x for (x,) in self._list.get()] if self._list.exists() else []
        mapped = sorted((x, y) for (x,), (y,) in self._map.iterator()) if self._map.exists() else []
        timers = sorted(self._handle.listTimers()) if self._has_timers else []
        text = f"{what}: {value} {listed} {mapped} {timers}"
        return made_row({**dict(zip(self._keys, key, strict=True)), "said": text})


def made_row(values: Row) -> Any:
    """A row as PySpark's."""
    from pyspark.sql import Row as SparkRow

    return SparkRow(**values)


class _Value:
    """One key's value, list or map of an oracle; each item with the time at which it goes."""

    def __init__(self, now: Callable[[], int], ttl: int | None) -> None:
        self._now = now
        self._ttl = ttl
        self.items: dict[Any, tuple[Any, int | None]] = {}
        self._count = 0

    def exists(self) -> bool:
        return bool(self._live())

    def get(self) -> Any:
        return self.items[0][0] if self.exists() else None

    def update(self, value: Any) -> None:
        self._put(0, value)

    def clear(self) -> None:
        self.items.clear()

    def _put(self, name: Any, value: Any) -> None:
        self.items[name] = (value, None if self._ttl is None else self._now() + self._ttl)

    def _live(self) -> dict[Any, tuple[Any, int | None]]:
        return {name: item for name, item in self.items.items() if item[1] is None or item[1] > self._now()}


class _List(_Value):
    def get(self) -> Any:
        return iter([value for value, _ in self._live().values()])

    def appendValue(self, value: Any) -> None:
        self._count += 1
        self._put(self._count, value)


class _Map(_Value):
    def updateValue(self, name: Any, value: Any) -> None:
        self._put(name, value)

    def removeKey(self, name: Any) -> None:
        self.items.pop(name, None)

    def iterator(self) -> Any:
        return iter([(name, value) for name, (value, _) in self._live().items()])


class _Handle:
    """One key's handle of an oracle."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.timers: set[int] = set()

    def getValueState(self, name: str, schema: str, ttlDurationMs: int | None = None) -> _Value:
        return _Value(self._now, ttlDurationMs)

    def getListState(self, name: str, schema: str, ttlDurationMs: int | None = None) -> _List:
        return _List(self._now, ttlDurationMs)

    def getMapState(self, name: str, keys: str, schema: str, ttlDurationMs: int | None = None) -> _Map:
        return _Map(self._now, ttlDurationMs)

    def registerTimer(self, time: int) -> None:
        self.timers.add(time)

    def deleteTimer(self, time: int) -> None:
        self.timers.discard(time)

    def listTimers(self) -> Iterator[int]:
        return iter(set(self.timers))


class _Expired:
    def __init__(self, time: int) -> None:
        self._time = time

    def getExpiryTimeInMs(self) -> int:
        return self._time


class Machines(Oracle):
    """A processor for each key, over dictionaries; `clock` gives milliseconds where timers are the clock's."""

    def __init__(self, keys: Sequence[str], groups: int, machine: Machine, clock: Callable[[], int] | None) -> None:
        super().__init__(keys, groups)
        self._machine = machine
        self._clock = clock
        self._of: dict[Key, tuple[int, Row, Machine, _Handle]] = {}

    def __deepcopy__(self, memo: Any) -> Machines:
        made = Machines(self.keys, 0, self._machine, self._clock)
        made.watermarks = list(self.watermarks)
        memo[id(self._clock)] = self._clock  # time is not the checkpoint's
        made._of = copy.deepcopy(self._of, memo)
        return made

    def give(self, rows: Sequence[Keyed], side: int) -> list[Row]:
        """A row for each key of the batch."""
        own: dict[Key, list[Any]] = defaultdict(list)
        for group, row in rows:
            key = self.key_of(row)
            own[key].append(made_row(row))
            if key not in self._of:
                machine, handle = copy.copy(self._machine), _Handle(self._clock or _no_time)
                machine.init(handle)
                self._of[key] = (group, {name: row[name] for name in self.keys}, machine, handle)
        found = []
        for key, those in own.items():
            _, shown, machine, _ = self._of[key]
            found += [row.asDict() for row in machine.handleInputRows(tuple(shown.values()), those, None)]
        return found

    def fired(self, groups: set[int]) -> list[Row]:
        """The rows of timers of event time."""
        return [] if self._clock is not None else self._fire(groups, lambda group: self.watermarks[group] // 1000)

    def time_passed(self) -> list[Row]:
        """The rows of timers of the clock."""
        clock = self._clock
        return [] if clock is None else self._fire(set(range(len(self.watermarks))), lambda _: clock())

    def _fire(self, groups: set[int], reached: Callable[[int], int]) -> list[Row]:
        found = []
        for group, shown, machine, handle in self._of.values():
            while group in groups and handle.timers and min(handle.timers) <= reached(group):
                time = min(handle.timers)
                handle.timers.discard(time)
                expired = machine.handleExpiredTimer(tuple(shown.values()), None, _Expired(time))
                found += [row.asDict() for row in expired]
        return found


def _no_time() -> int:
    return 0
