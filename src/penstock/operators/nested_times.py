# SPDX-License-Identifier: Apache-2.0
"""Timestamps inside arrays, maps and structs, as functions over frames see them and give them back.

As in PySpark they are `pandas.Timestamp`s without a zone, on the clock of the session's zone; what comes back with a
zone of its own is that instant. Arrow knows only UTC there. Such values are Python objects in a frame, so they are
changed one by one, as PySpark does; columns without timestamps inside are Arrow's alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

Change = Callable[[Any], Any]
"""Gives a value in place of one that is not null."""
_Leaf = Callable[[pa.DataType], Change | None]


def shown(kind: pa.DataType, zone: str) -> Change | None:
    """The change from a value of a nested type to the one that a function sees; None if Arrow's is that already."""
    import pandas as pd

    def wall_clock(value: Any) -> Any:
        found = pd.Timestamp(value)
        found = found.tz_localize("UTC") if found.tzinfo is None else found
        return found.tz_convert(zone).tz_localize(None)

    def leaf(inner: pa.DataType) -> Change | None:
        return wall_clock if inner.tz is not None else pd.Timestamp

    return _change(kind, leaf, _objects)


def taken(kind: pa.DataType, zone: str) -> Change | None:
    """The change from a function's value to one that Arrow reads as a nested type; None if it needs none."""
    import pandas as pd

    def instant(value: Any) -> Any:
        found = pd.Timestamp(value)
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return found
        refuse_far_times(found)
        return found.tz_localize(zone, ambiguous=False, nonexistent="shift_forward")

    def leaf(inner: pa.DataType) -> Change | None:
        return instant if inner.tz is not None else None

    return _change(kind, leaf, list) or (_lists if _has_lists_of_lists(kind) else None)


def refuse_far_times(*times: Any) -> None:
    """Raise OverflowError for a time on a clock that pandas gives wrong instants of; PySpark refuses them too."""
    import pandas as pd

    for time in times:
        if not pd.isna(time) and not pd.Timestamp.min < time < pd.Timestamp.max:
            raise OverflowError(f"{time} is out of the years 1677 to 2262, in which pandas knows the clocks of zones")


def _has_lists_of_lists(kind: pa.DataType) -> bool:
    inner = kind.value_type if hasattr(kind, "value_field") else None
    return inner is not None and hasattr(inner, "value_field")


def _lists(value: Any) -> Any:
    """An array of several dimensions as the lists of lists that Arrow reads."""
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim > 1 else value


def _change(kind: pa.DataType, leaf: _Leaf, gathered: Callable[[list[Any]], Any]) -> Change | None:
    if pt.is_timestamp(kind):
        return leaf(kind)
    if pt.is_struct(kind):
        return _of_struct(list(kind), [_change(field.type, leaf, gathered) for field in kind])
    if pt.is_map(kind):
        return _of_map(_change(kind.key_type, leaf, gathered), _change(kind.item_type, leaf, gathered))
    inner = _change(kind.value_type, leaf, gathered) if hasattr(kind, "value_field") else None
    if inner is None:
        return None
    return lambda value: gathered([_one(inner, item) for item in value])


def _of_struct(fields: list[pa.Field], inner: list[Change | None]) -> Change | None:
    if not any(inner):
        return None
    changes = {field.name: change for field, change in zip(fields, inner, strict=True)}

    def change(value: Any) -> Any:
        items = value if isinstance(value, dict) else dict(zip(changes, value, strict=False))
        return {name: _one(changes.get(name), item) for name, item in items.items()}

    return change


def _of_map(key: Change | None, item: Change | None) -> Change | None:
    if key is None and item is None:
        return None

    def change(value: Any) -> Any:
        pairs: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else value
        return {_one(key, one): _one(item, other) for one, other in pairs}

    return change


def _one(change: Change | None, value: Any) -> Any:
    return value if change is None or value is None else change(value)


def _objects(values: list[Any]) -> Any:
    """An array of these objects, which may be arrays themselves."""
    found = np.empty(len(values), object)
    for place, value in enumerate(values):
        found[place] = value
    return found
