# SPDX-License-Identifier: Apache-2.0
"""A group's key as PySpark gives it to functions over frames: what stands in the frame's key columns.

So numbers are NumPy's, a null number is a NaN, timestamps are `pandas.Timestamp`s in the session's time zone and
without one, intervals `pandas.Timedelta`s, a null of either is `NaT`; all else is Python's. Checked against PySpark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

Value = Callable[[pa.Scalar], Any]

_FRAME_UNIT = "ns"


class FrameKeys:
    """The keys of one operator: how a scalar of each key column becomes what the function is given."""

    def __init__(self, types: Sequence[pa.DataType], timezone: str) -> None:
        self._values = [_value(kind, timezone) for kind in types]

    def of(self, key: Sequence[pa.Scalar]) -> tuple[Any, ...]:
        """The key of a group."""
        return tuple([value(_decoded(scalar)) for value, scalar in zip(self._values, key, strict=True)])


def _decoded(scalar: pa.Scalar) -> pa.Scalar:
    return scalar.value if isinstance(scalar, pa.DictionaryScalar) else scalar


def _value(kind: pa.DataType, timezone: str) -> Value:
    if pt.is_dictionary(kind):
        return _value(kind.value_type, timezone)
    if pt.is_boolean(kind):
        return lambda scalar: np.bool_(scalar.as_py()) if scalar.is_valid else None
    if pt.is_integer(kind) or pt.is_floating(kind):
        return _number(np.dtype(kind.to_pandas_dtype()))
    if pt.is_timestamp(kind):
        return _timestamp(kind, timezone)
    if pt.is_duration(kind):
        return _duration(kind)
    return lambda scalar: scalar.as_py()


def _number(dtype: np.dtype[Any]) -> Value:
    # A column of integers that has nothing but nulls is one of float64 in a frame.
    missing = dtype.type("nan") if dtype.kind == "f" else np.float64("nan")
    return lambda scalar: dtype.type(scalar.as_py()) if scalar.is_valid else missing


def _timestamp(kind: pa.DataType, timezone: str) -> Value:
    import pandas as pd

    def value(scalar: pa.Scalar) -> Any:
        if not scalar.is_valid:
            return pd.NaT
        found = pd.Timestamp(scalar.value, unit=kind.unit).as_unit(_FRAME_UNIT)
        return found if kind.tz is None else found.tz_localize("UTC").tz_convert(timezone).tz_localize(None)

    return value


def _duration(kind: pa.DataType) -> Value:
    import pandas as pd

    return lambda scalar: pd.Timedelta(scalar.value, unit=kind.unit) if scalar.is_valid else pd.NaT
