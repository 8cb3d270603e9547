# SPDX-License-Identifier: Apache-2.0
"""Evaluates expressions over one batch: Arrow's kernels, one call for each function and batch.

`CASE`, `IF`, `COALESCE`, `AND` and `OR` evaluate an argument only over the rows for which Spark would, where it could
raise an error there: `CASE WHEN n <> 0 THEN v / n END` divides no row by zero. Elsewhere all rows are cheaper.

Limits: an expression that occurs twice is evaluated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.expressions import casts
from penstock.operators.expressions.arithmetic import ARITHMETIC, FAILING
from penstock.operators.expressions.calendar import CALENDAR
from penstock.operators.expressions.comparison import COMPARISON
from penstock.operators.expressions.nested import NESTED
from penstock.operators.expressions.patterns import PATTERNS, pattern_can_fail
from penstock.operators.expressions.text import TEXT
from penstock.operators.expressions.tree import (
    ArrowExpression,
    Call,
    ColumnRef,
    Constant,
    Expression,
    UnsupportedError,
    ValuesError,
    parts,
)
from penstock.operators.expressions.values import (
    FALSE,
    TRUE,
    Datum,
    Kernel,
    any_true,
    array_of,
    column_of,
    is_true,
    of_type,
)
from penstock.record.layout import decoded, fixed_values, valid_mask

_OF_VALUES = {**ARITHMETIC, **COMPARISON, **TEXT, **PATTERNS, **CALENDAR, **NESTED}
KERNELS: dict[str, Kernel] = {**_OF_VALUES, "Cast": casts.cast}
"""The functions that can be computed from arguments over all rows, by the names Spark's analyser has for them."""

Numbers = npt.NDArray[np.int64]
_FAIL_BY_NAME = FAILING | {"GetArrayItem", "ElementAt", "TimestampAddInterval", "SecondsToTimestamp", "AddMonths"}


def evaluate(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """The value for each row of the batch; raises ValuesError where Spark raises for the values."""
    return of_type(column_of(_value(expression, batch), batch.num_rows), expression.type)


def probe(expression: Expression, rows: pa.RecordBatch) -> None:
    """Evaluate it over no rows, with all that is skipped where there are none; raises UnsupportedError."""
    for part in parts(expression):
        if isinstance(part, Call) and part.function in _LAZY:
            for argument in filter(_can_fail, part.arguments):
                with suppress(ValuesError):  # of a constant, which no row may ever need
                    evaluate(argument, rows)
    evaluate(expression, rows)


def selected(condition: Expression, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows for which the condition is true."""
    mask = _value(condition, batch)
    if isinstance(mask, pa.Scalar):
        return batch if any_true(mask) else batch.slice(0, 0)
    return batch.filter(mask)


def _value(expression: Expression, batch: pa.RecordBatch) -> Datum:
    if isinstance(expression, ColumnRef):
        column = decoded(batch.column(expression.name))
        try:
            return of_type(column, expression.type)
        except pa.ArrowInvalid as error:
            raise ValuesError(
                f"{expression.name!r} of type {column.type} does not fit {expression.type}: {error}: cast it with "
                "mapInArrow first, by column.cast(type, safe=False) where it may lose something"
            ) from None
    if isinstance(expression, Constant):
        return expression.scalar
    if isinstance(expression, ArrowExpression):
        rows = batch.select(list(expression.columns)) if expression.columns else batch
        return of_type(by_arrow(expression.expression, rows), expression.type)
    lazily = _LAZY.get(expression.function)
    if lazily is not None:
        return lazily(expression, batch)
    kernel = KERNELS.get(expression.function)
    if kernel is None:
        raise UnsupportedError(expression.function)
    values = [_value(argument, batch) for argument in expression.arguments]
    try:
        found = kernel(expression, values)
    except pa.ArrowInvalid as error:
        way_out = " (cast to a wider type first)" if "overflow" in str(error) else ""
        raise ValuesError(f"{expression.function}: {error}{way_out}") from error
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if isinstance(found, pa.Array) and values and all(isinstance(value, pa.Scalar) for value in values):
        found = found[0]  # what NumPy computed of constants stands for every row
    return of_type(found, expression.type)


def by_arrow(expression: pc.Expression, batch: pa.RecordBatch) -> pa.Array:
    """The value of one of Arrow's own expressions for each row."""
    # pyarrow.acero would import pyarrow.dataset and with it pandas; the module beneath it does not.
    from pyarrow._acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

    steps = [
        Declaration("table_source", TableSourceNodeOptions(pa.Table.from_batches([batch]))),
        Declaration("project", ProjectNodeOptions([expression], ["value"])),
    ]
    found = Declaration.from_sequence(steps).to_table(use_threads=False).column(0)
    return found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks or [pa.nulls(0, found.type)])


def _can_fail(expression: Expression) -> bool:
    calls = (part for part in parts(expression) if isinstance(part, Call))
    return any(_call_can_fail(call) for call in calls)


def _call_can_fail(call: Call) -> bool:
    if call.function == "Cast":
        return casts.can_fail(call)
    if call.function in PATTERNS:
        return pattern_can_fail(call)
    if call.function not in _FAIL_BY_NAME:
        return False
    return not (pa.types.is_floating(call.type) and call.function in ("Add", "Subtract", "Multiply", "UnaryMinus"))


def _mask(condition: Expression, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """A mask that is true where a condition is true."""
    mask = column_of(is_true(_value(condition, batch)), batch.num_rows)
    return _bools(mask)


def _bools(mask: pa.Array) -> npt.NDArray[np.bool_]:
    # A filtered row number is a NumPy view away; Array.to_numpy() would import pandas.
    rows = array_of(np.arange(len(mask)), pa.int64()).filter(mask)
    found = np.zeros(len(mask), np.bool_)
    found[fixed_values(rows, np.int64)] = True
    return found


def _rows(batch: pa.RecordBatch, positions: Numbers) -> pa.RecordBatch:
    return batch.take(array_of(positions, pa.int64()))


def _evaluated(expression: Expression, batch: pa.RecordBatch, positions: Numbers) -> pa.Array:
    """The value for some rows; not even constants are computed where there are none."""
    if not len(positions):
        return pa.nulls(0, expression.type)
    return evaluate(expression, _rows(batch, positions))


def _pieced(parts_of: Sequence[tuple[Numbers, pa.Array]], rows: int, kind: pa.DataType) -> pa.Array:
    """One array out of values for some rows each; null for rows that have none."""
    order = np.full(rows, -1, np.int64)
    start = 0
    for positions, values in parts_of:
        order[positions] = np.arange(start, start + len(values))
        start += len(values)
    values = pa.concat_arrays([of_type(values, kind) for _, values in parts_of] or [pa.nulls(0, kind)])
    return values.take(array_of(order, pa.int64(), order < 0))


def _cases(call: Call, batch: pa.RecordBatch) -> Datum:
    """`CASE` and `IF`: pairs of condition and value, and perhaps a value for the rest."""
    arguments = call.arguments
    pairs = [(arguments[place], arguments[place + 1]) for place in range(0, len(arguments) - 1, 2)]
    rest = arguments[-1] if len(arguments) % 2 else None
    if not any(_can_fail(argument) for argument in arguments[1:]):
        result: Datum = pa.nulls(1, call.type)[0] if rest is None else of_type(_value(rest, batch), call.type)
        for condition, value in reversed(pairs):
            found = of_type(_value(value, batch), call.type)
            result = pc.if_else(is_true(_value(condition, batch)), found, result)
        return result
    left = np.arange(batch.num_rows)
    pieces: list[tuple[Numbers, pa.Array]] = []
    for condition, value in pairs:
        inside = _mask(condition, _rows(batch, left))
        chosen, left = left[inside], left[~inside]
        pieces.append((chosen, _evaluated(value, batch, chosen)))
    if rest is not None:
        pieces.append((left, _evaluated(rest, batch, left)))
    return _pieced(pieces, batch.num_rows, call.type)


def _coalesce(call: Call, batch: pa.RecordBatch) -> Datum:
    if not any(_can_fail(argument) for argument in call.arguments[1:]):
        return pc.coalesce(*(of_type(_value(argument, batch), call.type) for argument in call.arguments))
    left = np.arange(batch.num_rows)
    found: list[tuple[Numbers, pa.Array]] = []
    for argument in call.arguments:
        values = _evaluated(argument, batch, left)
        inside = valid_mask(values)
        found.append((left[inside], values.filter(values.is_valid())))
        left = left[~inside]
    return _pieced(found, batch.num_rows, call.type)


def _logical(join: Callable[[Datum, Datum], Datum], settled: pa.Scalar) -> Callable[[Call, pa.RecordBatch], Datum]:
    def value(call: Call, batch: pa.RecordBatch) -> Datum:
        left, right = call.arguments
        first = _value(left, batch)
        if not _can_fail(right):
            return join(first, _value(right, batch))
        first = column_of(first, batch.num_rows)
        is_open = pc.coalesce(pc.not_equal(first, settled), TRUE)
        positions = np.flatnonzero(_bools(is_open))
        second = _pieced([(positions, _evaluated(right, batch, positions))], batch.num_rows, pa.bool_())
        return join(first, second)

    return value


_LAZY: dict[str, Callable[[Call, pa.RecordBatch], Datum]] = {
    "CaseWhen": _cases,
    "If": _cases,
    "Coalesce": _coalesce,
    "And": _logical(pc.and_kleene, FALSE),
    "Or": _logical(pc.or_kleene, TRUE),
}
FUNCTIONS = frozenset({*KERNELS, *_LAZY})
"""All functions there are."""
