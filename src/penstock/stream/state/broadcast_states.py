# SPDX-License-Identifier: Apache-2.0
"""State that is the same in all tasks of a processor: a map that the rows of its second stream write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import PlanError
from penstock.stream.state.batch_states import MapForm, Moment, Rows
from penstock.stream.state.python_values import EntryForm, RowMaker, Value
from penstock.stream.state.variables import MapVariable, VariableSpec


class SharedMap:
    """The map, as batches: written while a processor handles rows of the second stream, and read at any time."""

    def __init__(self, moment: Moment, spec: VariableSpec) -> None:
        self._moment = moment
        self._spec = spec
        self._form = MapForm(spec)

    def get(self, own: Rows) -> pa.RecordBatch:
        """The value of each row of `own`, nulls where there is none."""
        keys = self._form.keys(own, None)
        return self._variable.get(self._slots(keys.num_rows), keys, self._moment.now)[1]

    def put(self, own: Rows, values: Rows) -> None:
        """Set the value of each row of `own`; of one that is there several times the last counts."""
        self._refuse_outside()
        keys = self._form.keys(own, None)
        batch = self._form.values(values, keys.num_rows)
        if keys.num_rows:
            self._variable.put(self._slots(keys.num_rows), keys, batch, self._moment.now)

    def remove(self, own: Rows) -> None:
        """Remove the entry of each row of `own`, where there is one."""
        self._refuse_outside()
        keys = self._form.keys(own, None)
        self._variable.remove(self._slots(keys.num_rows), keys)

    def clear(self) -> None:
        """Remove all entries."""
        self._refuse_outside()
        self._variable.clear(self._slots(1))

    def entries(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """All keys, and their values."""
        _, keys, values = self._variable.entries(self._slots(1), self._moment.now)
        return keys, values

    def _refuse_outside(self) -> None:
        if not self._moment.is_shared:
            raise PlanError(
                f"the broadcast state {self._spec.name!r} is the same in all tasks, so only the rows that come to all"
                " may change it: write it while these are handled"
            )

    def _slots(self, count: int) -> Any:
        return self._moment.shared.slots([], count)

    @property
    def _variable(self) -> MapVariable:
        found = self._moment.shared.variable(self._spec.name)
        assert isinstance(found, MapVariable)  # noqa: S101 - declared as one
        return found


class SharedDictionary:
    """The map with Python values; what was read is kept until it changes."""

    def __init__(self, moment: Moment, spec: VariableSpec, make_rows: RowMaker) -> None:
        self._map = SharedMap(moment, spec)
        self._form = EntryForm(spec, f"broadcast state {spec.name!r}", make_rows)
        self._read: dict[Value, Value] | None = None

    def exists(self) -> bool:
        """Tell if there is an entry."""
        return bool(self._entries())

    def getValue(self, key: Any) -> Value | None:
        """The value of a key, or None."""
        value = self._entries().get(self._form.key(key))
        return None if value is None else self._form.row(value)

    def containsKey(self, key: Any) -> bool:
        """Tell if there is a key."""
        return self._form.key(key) in self._entries()

    def updateValue(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        own, values = self._form.keys, self._form.values
        self._map.put(own.batch([own.kept(key)]), values.batch([values.kept(value)]))
        self._read = None

    def removeKey(self, key: Any) -> None:
        """Remove a key."""
        self._map.remove(self._form.keys.batch([self._form.key(key)]))
        self._read = None

    def clear(self) -> None:
        """Remove all keys."""
        self._map.clear()
        self._read = None

    def iterator(self) -> Iterator[tuple[Value, Value]]:
        """The entries."""
        return self._form.entries(self._entries())

    def keys(self) -> Iterator[Value]:
        """The keys."""
        return self._form.own(self._entries())

    def values(self) -> Iterator[Value]:
        """The values."""
        return self._form.shown(self._entries())

    def _entries(self) -> dict[Value, Value]:
        if self._read is None:
            keys, values = self._map.entries()
            self._read = dict(zip(self._form.keys.read(keys), self._form.values.read(values), strict=True))
        return self._read
