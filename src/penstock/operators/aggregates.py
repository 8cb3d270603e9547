# SPDX-License-Identifier: Apache-2.0
"""The aggregate functions of `agg(name=(column, function))`, as states that can be merged in any order.

Each function lifts its column into one or more state columns, which are then merged by one Arrow aggregation
(sum, min, max, any, all, product) or by moments; the same merge serves partial results and the final one.
Results follow Spark: `count` skips nulls, the others skip nulls and give null where there is no value, `min` and
`max` take NaN as the largest number, `stddev` and `variance` are those of a sample (null below two values).

Result types are Spark's: count int64, min and max the column's own, any and all boolean, stddev and variance float64;
sum, mean and product see `aggregate_sums`. Columns that Spark casts to a number first (strings, timestamps) are
refused, and so are sums and means of intervals and extremes of nested types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.errors import PlanError, SchemaError
from penstock.operators.aggregate_states import Aggregation, Function, State, SumRules
from penstock.operators.aggregate_sums import as_floats, mean_function, product_function, sum_function
from penstock.operators.columns import only_column, refuse_collated
from penstock.operators.keys import Codes, plain

__all__ = [
    "ALL_COLUMNS",
    "MOMENTS",
    "Aggregation",
    "Function",
    "State",
    "aggregate_function",
    "lifted",
    "merge_moments",
    "plain_type",
]

ALL_COLUMNS = "*"
MOMENTS = "moments"
"""A merge that Arrow does not have: count, mean and squared deviation together."""

_COUNTS = ("count", "count_all")


def aggregate_function(aggregation: Aggregation, schema: pa.Schema, *, ansi: bool = True) -> Function:
    """The function for this column; raises PlanError naming what there is.

    `ansi` says whether a sum that leaves its type is an error, as with `spark.sql.ansi.enabled`.
    """
    if aggregation.function not in _FUNCTIONS and aggregation.function not in _SUMS:
        raise PlanError(_unknown(aggregation))
    if aggregation.column == ALL_COLUMNS:
        if aggregation.function not in _COUNTS:
            raise PlanError(f"{aggregation.name}: {aggregation.function} needs a column, only count takes '*'")
        return _count_all(pa.int64())
    if aggregation.column not in schema.names:
        raise SchemaError(
            f"agg: {aggregation.name}: there is no column {aggregation.column!r}; there are {', '.join(schema.names)}"
        )
    field = only_column(schema, aggregation.column, aggregation.name)
    if aggregation.function not in _COUNTS:
        refuse_collated(field, f"{aggregation.name}: {aggregation.function}")
    kind = plain_type(field.type)
    if aggregation.function in _SUMS:
        function = _SUMS[aggregation.function](kind, SumRules(aggregation.title, ansi))
    else:
        function = _FUNCTIONS[aggregation.function](kind)
    if function is None:
        raise PlanError(
            f"{aggregation.name}: {aggregation.function} of column {aggregation.column!r} ({kind}) is not possible; "
            "cast the column first, or use applyInArrow"
        )
    return function


def aggregate_names() -> tuple[str, ...]:
    """The functions of this module."""
    return (*_FUNCTIONS, *_SUMS)


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
    return (
        f"{aggregation.name}: function {aggregation.function!r} is not among the functions that can be merged; "
        f"supported are {', '.join(sorted(aggregate_names()))}. applyInArrow can compute anything over a whole group"
    )


def _same(column: pa.Array) -> pa.Array:
    return column


def _valid(column: pa.Array) -> pa.Array:
    return column.is_valid()


def _ones(column: pa.Array) -> pa.Array:
    ones = np.ones(len(column), np.int64)
    return pa.Array.from_buffers(pa.int64(), len(ones), [None, pa.py_buffer(ones)])


def _count(kind: pa.DataType) -> Function:  # noqa: ARG001 - every type can be counted
    return Function((State("count", pa.int64(), "sum", _valid),), pa.int64(), _same, may_be_null=False)


def _count_all(kind: pa.DataType) -> Function:  # noqa: ARG001 - every type can be counted
    return Function((State("count", pa.int64(), "sum", _ones),), pa.int64(), _same, may_be_null=False)


def _extreme(name: str) -> Callable[[pa.DataType], Function | None]:
    def make(kind: pa.DataType) -> Function | None:
        if pt.is_duration(kind):
            state = State(name, pa.int64(), name, lambda column: column.view(pa.int64()))
            return Function((state,), kind, lambda column: column.view(kind), keeps_type=True)
        if pt.is_floating(kind):
            return _float_extreme(name, kind)
        if pt.is_nested(kind) or pt.is_null(kind) or pt.is_interval(kind) or pt.is_fixed_size_binary(kind):
            return None
        return Function((State(name, kind, name, _same),), kind, _same, keeps_type=True)

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
            State("mean", pa.float64(), MOMENTS, as_floats),
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
    "count": _count,
    "count_all": _count_all,
    "max": _extreme("max"),
    "min": _extreme("min"),
    "product": product_function,
    "stddev": _spread("stddev"),
    "variance": _spread("variance"),
}
_SUMS: dict[str, Callable[[pa.DataType, SumRules], Function | None]] = {
    "avg": mean_function,
    "mean": mean_function,
    "sum": sum_function,
}
"""Functions that may leave their type."""
