# SPDX-License-Identifier: Apache-2.0
"""State columns merged by group: Arrow's own hash aggregation, and sums that know when they leave their type.

`sum` of 64-bit integers and of decimals wraps in Arrow. A checked sum first looks whether it could leave its type at
all, from the largest value and the number of rows: 0.3 ns a row for integers, 2 ns for decimals. Only where it could
is the sum made exactly: of integers as two halves of 32 bits, of decimals with 256 bits.

Nothing here imports pandas until a decimal sum has left its type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.keys import Groups, int64_array
from penstock.record.layout import bits, fixed_values, null_mask

Mask = npt.NDArray[np.bool_]

_CODE = "code"
_INT64_LIMIT = (1 << 63) - 1
_DECIMAL_DIGITS = 38
_DECIMAL_LIMIT = 10**_DECIMAL_DIGITS - 1
_WIDE_DIGITS = 76
_STARTS = {
    ("sum", pa.int64()): (np.add, np.dtype(np.int64), 0),
    ("sum", pa.float64()): (np.add, np.dtype(np.float64), 0.0),
    ("min", pa.int64()): (np.minimum, np.dtype(np.int64), _INT64_LIMIT),
    ("max", pa.int64()): (np.maximum, np.dtype(np.int64), -_INT64_LIMIT - 1),
}
"""By merge and type: what merges two values, in which NumPy type, and what nothing begins with."""
_LOW_HALF = np.int64(0xFFFFFFFF)
_HALF_BITS = 32


def merged_by_group(groups: Groups, columns: Sequence[pa.Array], merges: Sequence[str]) -> list[pa.Array]:
    """Each column reduced to one value per group, in order of the groups; nulls are skipped, types kept."""
    found = [_merged_numbers(groups, column, merge) for column, merge in zip(columns, merges, strict=True)]
    rest = [index for index, array in enumerate(found) if array is None]
    by_arrow = _merged_by_arrow(groups, [columns[index] for index in rest], [merges[index] for index in rest])
    for index, array in zip(rest, by_arrow, strict=True):
        found[index] = array
    return [array for array in found if array is not None]


def _merged_numbers(groups: Groups, column: pa.Array, merge: str) -> pa.Array | None:
    """Sums of 64-bit numbers, least and greatest integers and times, where no value is null; None for all else.

    Row after row into an array of the groups takes 2 ns a row however many groups there are. Arrow hashes the codes
    once more: 11 ns for few groups, 52 ns for 200,000. Of few rows its plan alone takes longer than all other merges.
    """
    is_time = pt.is_timestamp(column.type) or pt.is_time64(column.type) or pt.is_duration(column.type)
    start = _STARTS.get((merge, pa.int64() if is_time and merge in ("min", "max") else column.type))
    if start is None or column.null_count:
        return None
    ufunc, dtype, first = start
    merged = np.full(groups.count, first, dtype)
    with np.errstate(all="ignore"):
        ufunc.at(merged, groups.codes, fixed_values(column, dtype))
    return pa.Array.from_buffers(column.type, groups.count, [None, pa.py_buffer(merged)])


def _merged_by_arrow(groups: Groups, columns: Sequence[pa.Array], merges: Sequence[str]) -> list[pa.Array]:
    if not columns:
        return []
    # pyarrow.acero would import pyarrow.dataset and with it pandas; the module beneath it does not.
    from pyarrow._acero import AggregateNodeOptions, Declaration, TableSourceNodeOptions

    codes = groups.codes.astype(np.uint32)
    arrays = [pa.Array.from_buffers(pa.uint32(), len(codes), [None, pa.py_buffer(codes)]), *columns]
    table = pa.table(arrays, names=[_CODE, *(str(index) for index in range(len(columns)))])
    options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    steps = [(str(index), f"hash_{merge}", options, f"m{index}") for index, merge in enumerate(merges)]
    plan = Declaration.from_sequence(
        [
            Declaration("table_source", TableSourceNodeOptions(table)),
            Declaration("aggregate", AggregateNodeOptions(steps, keys=[_CODE])),
        ]
    )
    # One thread: groups then come in first-seen order, which is the order of the codes.
    result = plan.to_table(use_threads=False)
    return [_one_chunk(result.column(f"m{index}"), column.type) for index, column in enumerate(columns)]


def may_overflow(groups: Groups, column: pa.Array) -> bool:
    """Tell whether the sum of some group could leave the type of this int64 or decimal128 column."""
    rows = len(column)
    if rows == 0:
        return False
    largest, limit = _largest(column)
    if largest * rows <= limit:
        return False
    # Groups are mostly smaller than the batch; what a null hides counts too, which only costs time.
    return largest * int(np.bincount(groups.codes).max()) > limit


def exact_sums(groups: Groups, column: pa.Array) -> tuple[pa.Array, Mask | None]:
    """The sum of each group, null where it does not fit; and where that is, or None."""
    return _integer_sums(groups, column) if pt.is_integer(column.type) else _decimal_sums(groups, column)


def _largest(column: pa.Array) -> tuple[int, int]:
    """A bound for the size of a column's values, and what a sum may reach."""
    if pt.is_integer(column.type):
        values = fixed_values(column, np.int64)
        return max(int(values.max(initial=0)), -int(values.min(initial=0))), _INT64_LIMIT
    high = fixed_values(column, np.dtype((np.int64, (2,))))[:, 1]
    return (max(int(high.max(initial=0)), -int(high.min(initial=0))) + 1) << 64, _DECIMAL_LIMIT


def _integer_sums(groups: Groups, column: pa.Array) -> tuple[pa.Array, Mask | None]:
    values = fixed_values(column, np.int64)
    missing = null_mask(column)
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    halves = [
        pa.Array.from_buffers(pa.int64(), len(values), [validity, pa.py_buffer(np.ascontiguousarray(half))])
        for half in (values >> _HALF_BITS, values & _LOW_HALF)
    ]
    high, low = merged_by_group(groups, halves, ("sum", "sum"))
    top, rest = fixed_values(high, np.int64), fixed_values(low, np.int64)
    top = top + (rest >> _HALF_BITS)
    missing = null_mask(high)
    lost: Mask = top != top.astype(np.int32)
    if missing is not None:
        lost &= ~missing
    sums = int64_array((top << _HALF_BITS) | (rest & _LOW_HALF))
    hidden = lost if missing is None else lost | missing
    return pc.if_else(boolean_array(hidden), pa.nulls(len(sums), pa.int64()), sums), _some(lost)


def _decimal_sums(groups: Groups, column: pa.Array) -> tuple[pa.Array, Mask | None]:
    wide = pa.decimal256(_WIDE_DIGITS, column.type.scale)
    (sums,) = merged_by_group(groups, [column.cast(wide)], ["sum"])
    try:
        return sums.cast(column.type), None
    except pa.ArrowInvalid:
        return fitting(sums, column.type)


def fitting(decimals: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """Decimals in another type of the same scale, null where they have too many digits; and where that is."""
    from decimal import Context, Decimal

    bound = Decimal(10**kind.precision - 1).scaleb(-kind.scale, Context(prec=_WIDE_DIGITS))
    beyond = pc.greater(pc.abs(decimals), pa.scalar(bound, decimals.type))
    fitted = pc.if_else(beyond, pa.nulls(len(decimals), decimals.type), decimals).cast(kind)
    beyond = pc.fill_null(beyond, fill_value=False)
    return fitted, _some(bits(beyond.buffers()[1], beyond.offset, len(beyond)).astype(np.bool_))


def boolean_array(values: Mask) -> pa.Array:
    """An ndarray of booleans as an Arrow array."""
    return pa.Array.from_buffers(
        pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))]
    )


def _some(mask: Mask) -> Mask | None:
    return mask if mask.any() else None


def _one_chunk(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return array if array.type == kind else array.cast(kind)
