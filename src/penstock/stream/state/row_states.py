# SPDX-License-Identifier: Apache-2.0
"""States as a processor of PySpark's has them: those of one key at a time, as Python values.

Each call would cost some microseconds in columns, so the states of all keys of a batch are fetched when the first one
is asked for, changed here, and put back together when the batch is done. Types are checked then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import PlanError
from penstock.stream.state.batch_states import Moment
from penstock.stream.state.keys import Keys
from penstock.stream.state.python_values import EntryForm, RowForm, RowMaker, Value
from penstock.stream.state.variables import ListVariable, MapVariable, ValueVariable, VariableSpec

_GONE: Any = object()
"""Stands for an entry of a map that was removed."""


class Cursor:
    """The key whose call is under way, among those of the batch."""

    __slots__ = ("at", "keys", "moment")

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.keys: Keys | None = None
        self.at = 0

    @property
    def batch(self) -> Keys:
        """The keys of the batch; raises PlanError while there is none."""
        if self.keys is None:
            raise PlanError(
                "a key's state is there while handleInputRows or handleExpiredTimer runs, and not outside"
            )
        return self.keys


class Buffered(Protocol):
    """Changes of a batch's calls that are not put back yet."""

    def put_back(self) -> None:
        """Put it back, and forget what was fetched."""


class ValueState:
    """One value of the key."""

    def __init__(self, cursor: Cursor, spec: VariableSpec, make_rows: RowMaker) -> None:
        self._cursor = cursor
        self._spec = spec
        self._form = RowForm(spec.schema, f"state {spec.name!r}", make_rows)
        self._taken, self._shown = self._form.kept, self._form.shown
        self._values: list[Value | None] | None = None
        self._changed: set[int] = set()

    def exists(self) -> bool:
        """Tell if there is a value."""
        values = self._values if self._values is not None else self._fetched()
        return values[self._cursor.at] is not None

    def get(self) -> Value | None:
        """The value, or None."""
        values = self._values if self._values is not None else self._fetched()
        value = values[self._cursor.at]
        return value if value is None or self._shown is None else self._shown(value)

    def update(self, newValue: Iterable[Any]) -> None:
        """Set the value."""
        values = self._values if self._values is not None else self._fetched()
        at = self._cursor.at
        values[at] = self._taken(newValue)
        self._changed.add(at)

    def clear(self) -> None:
        """Remove the value."""
        values = self._values if self._values is not None else self._fetched()
        values[self._cursor.at] = None
        self._changed.add(self._cursor.at)

    def put_back(self) -> None:
        """Put the changes back."""
        values, changed = self._values, sorted(self._changed)
        self._values = None
        if values is None or not changed:
            return
        self._changed = set()
        slots, now = self._cursor.batch.slots, self._cursor.moment.now
        kept = [at for at in changed if values[at] is not None]
        rows = self._form.batch([value for at in kept if (value := values[at]) is not None])
        self._variable.put(slots[np.array(kept, np.int64)], rows, now)
        if len(kept) < len(changed):
            gone = [at for at in changed if values[at] is None]
            self._variable.clear(slots[np.array(gone, np.int64)])

    def _fetched(self) -> list[Value | None]:
        known, rows = self._variable.get(self._cursor.batch.slots, self._cursor.moment.now)
        values: list[Value | None] = list(self._form.read(rows))
        for at in np.flatnonzero(~known).tolist():
            values[at] = None
        self._values = values
        return values

    @property
    def _variable(self) -> ValueVariable:
        found = self._cursor.moment.store.variable(self._spec.name)
        assert isinstance(found, ValueVariable)  # noqa: S101 - declared as one
        return found


class ListState:
    """A list of the key."""

    def __init__(self, cursor: Cursor, spec: VariableSpec, make_rows: RowMaker) -> None:
        self._cursor = cursor
        self._spec = spec
        self._form = RowForm(spec.schema, f"state {spec.name!r}", make_rows)
        self._taken, self._shown = self._form.kept, self._form.shown
        self._kept: list[list[Value]] | None = None
        self._added: dict[int, list[Value]] = {}
        self._replaced: set[int] = set()

    def exists(self) -> bool:
        """Tell if there is an element."""
        return next(self.get(), None) is not None

    def get(self) -> Iterator[Value]:
        """The elements."""
        at = self._cursor.at
        added = self._added.get(at, ())
        if at in self._replaced:
            values = [*added]
        else:
            kept = self._kept if self._kept is not None else self._fetched()
            values = [*kept[at], *added]
        return iter(values if self._shown is None else map(self._shown, values))

    def put(self, newState: Iterable[Iterable[Any]]) -> None:
        """Replace all elements."""
        self._replaced.add(self._cursor.at)
        self._added[self._cursor.at] = [self._taken(each) for each in newState]

    def appendValue(self, newState: Iterable[Any]) -> None:
        """Add an element."""
        self._added.setdefault(self._cursor.at, []).append(self._taken(newState))

    def appendList(self, newState: Iterable[Iterable[Any]]) -> None:
        """Add elements."""
        self._added.setdefault(self._cursor.at, []).extend([self._taken(each) for each in newState])

    def clear(self) -> None:
        """Remove all elements."""
        self.put(())

    def put_back(self) -> None:
        """Put the changes back."""
        self._kept = None
        added, replaced = self._added, self._replaced
        if not added:
            return
        self._added, self._replaced = {}, set()
        slots = self._cursor.batch.slots
        if replaced:
            self._variable.clear(slots[np.array(sorted(replaced), np.int64)])
        owners = np.repeat(np.array(list(added), np.int64), [len(each) for each in added.values()])
        values = [value for each in added.values() for value in each]
        self._variable.append(slots[owners], self._form.batch(values), self._cursor.moment.now)

    def _fetched(self) -> list[list[Value]]:
        keys = self._cursor.batch
        owners, rows = self._variable.get(keys.slots, self._cursor.moment.now)
        kept: list[list[Value]] = [[] for _ in range(len(keys))]
        for owner, value in zip(owners.tolist(), self._form.read(rows), strict=True):
            kept[owner].append(value)
        self._kept = kept
        return kept

    @property
    def _variable(self) -> ListVariable:
        found = self._cursor.moment.store.variable(self._spec.name)
        assert isinstance(found, ListVariable)  # noqa: S101 - declared as one
        return found


class MapState:
    """A map of the key."""

    def __init__(self, cursor: Cursor, spec: VariableSpec, make_rows: RowMaker) -> None:
        self._cursor = cursor
        self._spec = spec
        self._form = EntryForm(spec, f"state {spec.name!r}", make_rows)
        self._key, self._taken, self._row = self._form.key, self._form.values.kept, self._form.row
        self._maps: list[dict[Value, Value]] | None = None
        self._changed: dict[int, dict[Value, Value]] = {}

    def exists(self) -> bool:
        """Tell if there is an entry."""
        return bool(self._map())

    def getValue(self, key: Iterable[Any]) -> Value | None:
        """The value of a key of the map, or None."""
        value = self._map().get(self._key(key))
        return None if value is None else self._row(value)

    def containsKey(self, key: Iterable[Any]) -> bool:
        """Tell if the map has a key."""
        return self._key(key) in self._map()

    def updateValue(self, key: Iterable[Any], value: Iterable[Any]) -> None:
        """Set the value of a key of the map."""
        own, new = self._key(key), self._taken(value)
        self._map()[own] = new
        self._changed.setdefault(self._cursor.at, {})[own] = new

    def iterator(self) -> Iterator[tuple[Value, Value]]:
        """The entries."""
        return self._form.entries(self._map())

    def keys(self) -> Iterator[Value]:
        """The keys of the map."""
        return self._form.own(self._map())

    def values(self) -> Iterator[Value]:
        """The values of the map."""
        return self._form.shown(self._map())

    def removeKey(self, key: Iterable[Any]) -> None:
        """Remove a key of the map."""
        own = self._key(key)
        if self._map().pop(own, _GONE) is not _GONE:
            self._changed.setdefault(self._cursor.at, {})[own] = _GONE

    def clear(self) -> None:
        """Remove all entries."""
        entries = self._map()
        self._changed.setdefault(self._cursor.at, {}).update(dict.fromkeys(entries, _GONE))
        entries.clear()

    def put_back(self) -> None:
        """Put the changes back."""
        self._maps = None
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        flat = [(at, own, value) for at, entries in changed.items() for own, value in entries.items()]
        gone = [(at, own) for at, own, value in flat if value is _GONE]
        kept = [each for each in flat if each[2] is not _GONE]
        if gone:
            self._variable.remove(*self._entries([at for at, _ in gone], [own for _, own in gone]))
        if kept:
            values = self._form.values.batch([value for *_, value in kept])
            slots, own = self._entries([at for at, *_ in kept], [own for _, own, _ in kept])
            self._variable.put(slots, own, values, self._cursor.moment.now)

    def _entries(self, places: list[int], own: list[Value]) -> tuple[Any, pa.RecordBatch]:
        slots = self._cursor.batch.slots[np.array(places, np.int64)]
        return slots, self._form.keys.batch(own)

    def _map(self) -> dict[Value, Value]:
        maps = self._maps if self._maps is not None else self._fetched()
        return maps[self._cursor.at]

    def _fetched(self) -> list[dict[Value, Value]]:
        keys = self._cursor.batch
        owners, own, values = self._variable.entries(keys.slots, self._cursor.moment.now)
        maps: list[dict[Value, Value]] = [{} for _ in range(len(keys))]
        for owner, key, value in zip(
            owners.tolist(), self._form.keys.read(own), self._form.values.read(values), strict=True
        ):
            maps[owner][key] = value
        self._maps = maps
        return maps

    @property
    def _variable(self) -> MapVariable:
        found = self._cursor.moment.store.variable(self._spec.name)
        assert isinstance(found, MapVariable)  # noqa: S101 - declared as one
        return found
