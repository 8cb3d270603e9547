# SPDX-License-Identifier: Apache-2.0
"""The aggregate functions of `agg(name=(column, function))`, as states that can be merged in any order.

Each function lifts its column into one or more state columns, which are then merged by one Arrow aggregation
(sum, min, max, any, all, product) or by moments; the same merge serves partial results and the final one.
Results follow Spark: `count` skips nulls, the others skip nulls and give null where there is no value, `min` and
`max` take NaN as the largest number, `stddev` and `variance` are those of a sample (null below two values).

Result types: count int64; sum and product int64 of integers and float64 of floats; sum of decimal(p, s) is
decimal(min(38, p + 10), s); min and max keep their type. Known differences from Spark: the mean of decimals is a
float64, and a sum of integers beyond int64 wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.shuffle.errors import PlanError, SchemaError
from penstock.task.keys import Codes, plain

ALL_COLUMNS = "*"
MOMENTS = "moments"
"""A merge that Arrow does not have: count, mean and squared deviation together."""

_MAX_PRECISION = 38
_SUM_PRECISION = 10


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One result column: its name, the column it is made of, the function."""

    name: str
    column: str
    function: str


@dataclass(frozen=True, slots=True)
class State:
    """One state column: suffix and type, how it is lifted out of the input, how states merge."""

    suffix: str
    type: pa.DataType
    merge: str
    lift: Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class Function:
    """One function over one type: its states, its result's type, and how states become the result."""

    states: tuple[State, ...]
    type: pa.DataType
    finish: Callable[..., pa.Array]


def aggregate_function(aggregation: Aggregation, schema: pa.Schema) -> Function:
    """The function for this column; raises PlanError naming what there is."""
    make = _FUNCTIONS.get(aggregation.function)
    if make is None:
        raise PlanError(_unknown(aggregation))
    if aggregation.column == ALL_COLUMNS:
        if aggregation.function not in ("count", "count_all"):
            raise PlanError(f"{aggregation.name}: {aggregation.function} needs a column, only count takes '*'")
        return _count_all(pa.int64())
    if aggregation.column not in schema.names:
        raise SchemaError(
            f"{aggregation.name}: there is no column {aggregation.column!r}; there are {', '.join(schema.names)}"
        )
    kind = plain_type(schema.field(aggregation.column).type)
    function = make(kind)
    if function is None:
        raise PlanError(
            f"{aggregation.name}: {aggregation.function} of column {aggregation.column!r} ({kind}) is not possible; "
            "cast the column first, or use applyInArrow"
        )
    return function


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of `plain(column)`."""
    if pt.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pt.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pt.is_binary_view(kind) else kind


def lifted(state: State, column: pa.Array) -> pa.Array:
    """The state column of each row on its own."""
    result = state.lift(plain(column))
    return result if result.type == state.type else result.cast(state.type)


def _unknown(aggregation: Aggregation) -> str:
    if aggregation.function in ("first", "last"):
        reason = "is refused, because the order of rows behind an exchange is not defined"
    else:
        reason = "is not among the functions that can be merged"
    return (
        f"{aggregation.name}: function {aggregation.function!r} {reason}; supported are "
        f"{', '.join(sorted(_FUNCTIONS))}. applyInArrow can compute anything over a whole group"
    )


def _same(column: pa.Array) -> pa.Array:
    return column


def _valid(column: pa.Array) -> pa.Array:
    return column.is_valid()


def _ones(column: pa.Array) -> pa.Array:
    ones = np.ones(len(column), np.int64)
    return pa.Array.from_buffers(pa.int64(), len(ones), [None, pa.py_buffer(ones)])


def _count(kind: pa.DataType) -> Function:  # noqa: ARG001 - every type can be counted
    return Function((State("count", pa.int64(), "sum", _valid),), pa.int64(), _same)


def _count_all(kind: pa.DataType) -> Function:  # noqa: ARG001 - every type can be counted
    return Function((State("count", pa.int64(), "sum", _ones),), pa.int64(), _same)


def _sum(kind: pa.DataType) -> Function | None:
    if pt.is_decimal(kind):
        state = pa.decimal128(_MAX_PRECISION, kind.scale)
        result = pa.decimal128(min(_MAX_PRECISION, kind.precision + _SUM_PRECISION), kind.scale)
    elif pt.is_integer(kind) or pt.is_floating(kind):
        state = result = pa.int64() if pt.is_integer(kind) else pa.float64()
    else:
        return None
    return Function((State("sum", state, "sum", _same),), result, _same)


def _product(kind: pa.DataType) -> Function | None:
    if not (pt.is_integer(kind) or pt.is_floating(kind)):
        return None
    state = pa.int64() if pt.is_integer(kind) else pa.float64()
    return Function((State("product", state, "product", _same),), state, _same)


def _mean(kind: pa.DataType) -> Function | None:
    if not _is_number(kind):
        return None
    states = (State("sum", pa.float64(), "sum", _same), State("count", pa.int64(), "sum", _valid))
    return Function(states, pa.float64(), pc.divide)


def _extreme(name: str) -> Callable[[pa.DataType], Function | None]:
    def make(kind: pa.DataType) -> Function | None:
        if pt.is_duration(kind):
            state = State(name, pa.int64(), name, lambda column: column.view(pa.int64()))
            return Function((state,), kind, lambda column: column.view(kind))
        if pt.is_floating(kind):
            return _float_extreme(name, kind)
        if pt.is_nested(kind) or pt.is_null(kind) or pt.is_interval(kind) or pt.is_fixed_size_binary(kind):
            return None
        return Function((State(name, kind, name, _same),), kind, _same)

    return make


def _float_extreme(name: str, kind: pa.DataType) -> Function:
    """NaN is larger than all numbers: it wins every max, and only where there is nothing else a min."""
    numbers = State(name, kind, name, lambda column: _masked(column, _true_where_nan(column)))
    has_nan = State("nan", pa.bool_(), "any", _true_where_nan)

    def finish(number: pa.Array, nan: pa.Array) -> pa.Array:
        nans = pa.Array.from_buffers(kind, len(number), [None, pa.py_buffer(np.full(len(number), np.nan, dtype))])
        return (
            pc.if_else(nan, nans, number)
            if name == "max"
            else pc.if_else(pc.and_(number.is_null(), nan), nans, number)
        )

    dtype = np.dtype(kind.to_pandas_dtype())
    return Function((numbers, has_nan), kind, finish)


def _true_where_nan(column: pa.Array) -> pa.Array:
    return pc.is_nan(column)


def _masked(column: pa.Array, hide: pa.Array) -> pa.Array:
    return pc.if_else(hide, pa.nulls(len(column), column.type), column)


def _logical(name: str) -> Callable[[pa.DataType], Function | None]:
    def make(kind: pa.DataType) -> Function | None:
        return Function((State(name, kind, name, _same),), kind, _same) if pt.is_boolean(kind) else None

    return make


def _spread(name: str) -> Callable[[pa.DataType], Function | None]:
    def make(kind: pa.DataType) -> Function | None:
        if not _is_number(kind):
            return None
        states = (
            State("count", pa.int64(), MOMENTS, _valid),
            State("mean", pa.float64(), MOMENTS, _same),
            State("m2", pa.float64(), MOMENTS, lambda column: _floats(np.zeros(len(column)))),
        )
        return Function(states, pa.float64(), _sample_deviation if name == "stddev" else _sample_variance)

    return make


def _sample_variance(count: pa.Array, mean: pa.Array, m2: pa.Array) -> pa.Array:  # noqa: ARG001 - states by position
    counts = np.frombuffer(count.buffers()[1], np.int64, len(count), count.offset * 8)
    squares = np.frombuffer(m2.buffers()[1], np.float64, len(m2), m2.offset * 8)
    enough = counts > 1
    values = np.divide(squares, counts - 1, out=np.zeros(len(counts)), where=enough)
    return _masked(_floats(values), _booleans(~enough))


def _sample_deviation(count: pa.Array, mean: pa.Array, m2: pa.Array) -> pa.Array:
    return pc.sqrt(_sample_variance(count, mean, m2))


def merge_moments(codes: Codes, groups: int, states: Sequence[pa.Array]) -> list[pa.Array]:
    """Count, mean and squared deviation of each group, in two passes so that nothing cancels."""
    count, mean, m2 = states
    counts = np.frombuffer(count.buffers()[1], np.int64, len(count), count.offset * 8)
    means = np.frombuffer(mean.buffers()[1], np.float64, len(mean), mean.offset * 8)
    squares = np.frombuffer(m2.buffers()[1], np.float64, len(m2), m2.offset * 8)
    means = np.where(counts > 0, means, 0.0)  # what stands under a null is arbitrary
    total = np.bincount(codes, counts, groups)
    centre = np.divide(np.bincount(codes, counts * means, groups), total, out=np.zeros(groups), where=total > 0)
    spread = np.bincount(codes, squares + counts * (means - centre[codes]) ** 2, groups).astype(
        np.float64, copy=False
    )
    whole = total.astype(np.int64)
    return [pa.Array.from_buffers(pa.int64(), groups, [None, pa.py_buffer(whole)]), _floats(centre), _floats(spread)]


def _floats(values: npt.NDArray[np.floating[Any]]) -> pa.Array:
    return pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _booleans(values: npt.NDArray[np.bool_]) -> pa.Array:
    packed = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(packed)])


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


_FUNCTIONS: dict[str, Callable[[pa.DataType], Function | None]] = {
    "all": _logical("all"),
    "any": _logical("any"),
    "avg": _mean,
    "count": _count,
    "count_all": _count_all,
    "max": _extreme("max"),
    "mean": _mean,
    "min": _extreme("min"),
    "product": _product,
    "stddev": _spread("stddev"),
    "sum": _sum,
    "variance": _spread("variance"),
}
