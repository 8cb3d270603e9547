# SPDX-License-Identifier: Apache-2.0
"""Arrow batches to pandas frames and back, as PySpark shows them to user functions.

Zoned timestamps are naive wall-clock times of the session's zone in a frame, dates are `datetime.date`, maps are
dicts at any depth; columns are found by name, or by position where no column label is a string. Inside arrays, maps
and structs a null is None and integers are exact. A column of integers with nulls is one of float64, but where
PySpark's `mapInPandas` has pandas' nullable integers. A vector comes as a dict of its parts, and is given back as a
vector; variants and geometries, of which PySpark has objects, are refused. pandas is imported on first use only.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import PlanError, SchemaError, how_to_install
from penstock.graph import holds_one_value, shown_type, spark_type
from penstock.operators.conform import refuse_broken
from penstock.operators.nested_times import refuse_far_times, shown, taken

_REMEDY = "declare what it returns, or return what is declared"


def _hint() -> str:
    return f"pandas is needed for functions over frames and is not installed: {how_to_install('pandas')}"


def require_pandas() -> None:
    """Raise PlanError where pandas is missing, without importing it."""
    if importlib.util.find_spec("pandas") is None:
        raise PlanError(_hint())


def refuse_objects(verb: str, *schemas: pa.Schema) -> None:
    """Raise SchemaError for columns of which PySpark's frames have objects that Penstock does not make."""
    for field in (field for schema in schemas for field in schema):
        if holds_one_value(field.type):
            raise SchemaError(
                f"{verb}: column {field.name!r} is {shown_type(field)}, and frames have no variants and geometries"
                " here: take it apart in Spark, or write a function over Arrow, where it is a struct"
            )


def _pandas() -> ModuleType:
    try:
        import pandas as pd
    except ImportError as error:
        raise PlanError(_hint()) from error
    return pd  # type: ignore[no-any-return]


def is_frame(value: object) -> bool:
    """Tell whether this is a pandas DataFrame."""
    return isinstance(value, _pandas().DataFrame)


def frame_of(rows: pa.RecordBatch | pa.Table, timezone: str, *, mapped: bool = False) -> Any:
    """A frame of these rows; `mapped` is one of `mapInPandas`."""
    pd = _pandas()
    exact = mapped and not all(_is_plain(kind) for kind in rows.schema.types)
    apart = [index for index, column in enumerate(rows.columns) if _is_apart(column, exact)]
    plain = [index for index in range(len(rows.schema)) if index not in apart]
    if plain or not apart:
        frame = rows.select(plain).to_pandas(**_DATES)
    else:
        frame = pd.DataFrame(index=pd.RangeIndex(rows.num_rows))
    for index, place in enumerate(plain):
        kind = rows.schema.types[place]
        if pt.is_timestamp(kind) and kind.tz is not None:
            frame.isetitem(index, frame.iloc[:, index].dt.tz_convert(timezone).dt.tz_localize(None))
    for index in apart:
        frame.insert(index, rows.schema.names[index], _series(rows.column(index), timezone), allow_duplicates=True)
    return frame


_DATES = {"date_as_object": True, "coerce_temporal_nanoseconds": True}
_PLAIN = (
    pt.is_null,
    pt.is_boolean,
    pt.is_integer,
    pt.is_floating,
    pt.is_binary,
    pt.is_large_binary,
    pt.is_date,
    pt.is_time,
    pt.is_timestamp,
)


def _is_plain(kind: pa.DataType) -> bool:
    """Tell whether PySpark has NumPy's types in a frame of nothing but such columns, nulls of integers included."""
    return any(check(kind) for check in _PLAIN)


def _is_apart(column: Any, exact: bool) -> bool:
    """Tell whether a column is converted by itself: nested ones, and integers that keep their nulls."""
    return pt.is_nested(column.type) or bool(exact and pt.is_integer(column.type) and column.null_count)


def _series(column: Any, timezone: str) -> Any:
    kind = column.type
    pd = _pandas()
    if pt.is_integer(kind):
        name = f"{'Int' if pt.is_signed_integer(kind) else 'UInt'}{kind.bit_width}"
        return column.to_pandas(types_mapper=lambda _: pd.api.types.pandas_dtype(name))
    # A key that is there twice has its last value, as in a dict that PySpark makes of the pairs.
    series = column.to_pandas(integer_object_nulls=True, maps_as_pydicts="lossy", **_DATES)
    change = shown(kind, timezone)
    return series if change is None else series.map(change, na_action="ignore")


def concatenated(frames: list[Any]) -> list[Any]:
    """The rows of frames in order, as few frames as may be: those that follow each other with the same columns."""
    runs: list[list[Any]] = []
    last: tuple[list[Any], list[Any]] | None = None
    for frame in frames:
        shape = (list(frame.columns), list(frame.dtypes))
        if shape != last:
            runs.append([])
        runs[-1].append(frame)
        last = shape
    return [run[0] if len(run) == 1 else _pandas().concat(run, ignore_index=True) for run in runs]


def batch_of(frame: Any, schema: pa.Schema, timezone: str, operator: str) -> pa.RecordBatch:
    """A batch of the declared schema; raises SchemaError naming the column that does not fit."""
    columns = _ordered(frame, schema, operator)
    arrays = []
    for field, series in zip(schema, columns, strict=True):
        try:
            series = _instants(series, field.type, timezone)  # noqa: PLW2901 - the same column, in UTC
            if (spark_type(field) or "").startswith("{"):
                series = series.map(_parts, na_action="ignore")  # noqa: PLW2901 - the same column, in its parts
            arrays.append(pa.Array.from_pandas(series, type=field.type, safe=True))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"{operator}: column {field.name!r} is declared {field.type} and the frame has "
                f"dtype {series.dtype} ({error}): convert it there, or declare another type"
            ) from error
    if not arrays:
        raise SchemaError(f"{operator}: a schema without columns cannot be returned as a frame")
    chunks = [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for array in arrays]
    for array, field in zip(chunks, schema, strict=True):
        refuse_broken(array, field, operator)
    return pa.RecordBatch.from_arrays(chunks, schema=schema)


def _ordered(frame: Any, schema: pa.Schema, operator: str) -> list[Any]:
    labels = list(frame.columns)
    if any(isinstance(label, str) for label in labels):
        missing = [name for name in schema.names if name not in labels]
        extra = [str(label) for label in labels if label not in schema.names]
        if missing or extra or len(labels) != len(schema):
            raise SchemaError(
                f"{operator}: the frame's columns are ({', '.join(map(str, labels))}), declared are "
                f"({', '.join(schema.names)}); missing: {', '.join(missing) or 'none'}, "
                f"unexpected: {', '.join(extra) or 'none'}: {_REMEDY}"
            )
        if labels == schema.names:  # some may be there twice
            return [frame.iloc[:, index] for index in range(len(labels))]
        return [frame[name] for name in schema.names]
    if len(labels) != len(schema) and not (len(labels) == 0 and len(frame) == 0):
        raise SchemaError(f"{operator}: the frame has {len(labels)} columns, declared are {len(schema)}: {_REMEDY}")
    if not labels:
        return [_pandas().Series([], dtype=object) for _ in schema]
    return [frame.iloc[:, index] for index in range(len(schema))]


def _instants(series: Any, kind: pa.DataType, timezone: str) -> Any:
    """The column with instants in place of times on the session's clock; any other column as it is."""
    if pt.is_timestamp(kind) and kind.tz is not None:
        return _localised(series, timezone)
    change = taken(kind, timezone) if pt.is_nested(kind) else None
    return series if change is None else series.map(change, na_action="ignore")


def _parts(value: Any) -> Any:
    """A value of a user-defined type as the struct that it is in Arrow; another one as it is."""
    own = getattr(value, "__UDT__", None)
    return value if own is None else own.serialize(value)


def _localised(series: Any, timezone: str) -> Any:
    pd = _pandas()
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    if getattr(series.dtype, "kind", "") != "M":
        return series
    if isinstance(series.dtype, pd.ArrowDtype):  # its clock refuses hours that a zone has twice
        series = pa.Array.from_pandas(series).to_pandas(coerce_temporal_nanoseconds=False)
    if series.dt.tz is None:
        refuse_far_times(series.min(), series.max())
        series = series.dt.tz_localize(timezone, ambiguous=False, nonexistent="shift_forward")
    return series.dt.tz_convert("UTC")
