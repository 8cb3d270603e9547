# SPDX-License-Identifier: Apache-2.0
"""Random tables: types of all kinds, nested ones too, with nullability on each level, odd names, and edge values.

A table is said by its Spark schema, a seed and a number of rows, so that a program's text stays short. Doubles are
multiples of a quarter, NaN or infinite: their sums are the same in any order. Columns of Spark's own types (vectors,
variants, intervals) are made by Spark of whole numbers.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

NAMES = ("id", "a", "b", "k", "v", "w", "x", "text", "Total", "_1")
ODD_NAMES = (
    "a.b",
    "a`b",
    "a b",
    "ü",
    "名前",
    " x",
    "a,b",
    "a;b",
    "select",
    "count(1)",
    "x'y",
    'q"r',
    "$x",
    "{}",
    "a=1",
    "\\",
)
TWINS = ("A", "B", "ID", "K", "V")
"""Differ from plain names in their case alone: for sessions that tell cases apart."""

_INTEGERS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_TEXTS = ("", "a", "b", "été", "Straße", "x1-y22", " pad ", "Abc", "12", "名前 ☃", "😀", "%_", "null", "a\x00b")
_OWN_TYPES: tuple[DataType, ...] = (
    VectorUDT(),
    VariantType(),
    DayTimeIntervalType(),
    DayTimeIntervalType(1, 1),
    ArrayType(VariantType()),
    StructType([StructField("x", VectorUDT()), StructField("y", DayTimeIntervalType())]),
)
_OWN_SHARE = 0.1
_NULL_SHARE = 0.2
_EDGE_SHARE = 0.1


def atomic_type(draw: random.Random) -> DataType:
    """A type that holds no others."""
    kinds: list[DataType] = [LongType(), IntegerType(), StringType(), DoubleType(), DateType(), TimestampType()]
    kinds += [BooleanType(), ByteType(), ShortType(), FloatType(), BinaryType(), TimestampNTZType()]
    precision = draw.choice((5, 10, 18, 20, 38))
    kinds += [DecimalType(precision, draw.choice((0, 2, min(precision, 9))))] * 2
    return draw.choice(kinds)


def random_type(draw: random.Random, depth: int) -> DataType:
    """A type with up to `depth` levels of nesting."""
    if depth == 0 or draw.random() < 0.6:
        return atomic_type(draw)
    kind = draw.choice(("array", "array", "struct", "struct", "map"))
    if kind == "array":
        return ArrayType(random_type(draw, depth - 1), draw.random() < 0.6)
    if kind == "map":
        key = draw.choice((StringType(), IntegerType(), LongType(), DateType()))
        return MapType(key, random_type(draw, depth - 1), draw.random() < 0.6)
    names = draw.sample(("x", "y", "z", "X y", "é.1"), draw.randint(1, 3))
    return StructType([StructField(name, random_type(draw, depth - 1), draw.random() < 0.6) for name in names])


def random_schema(draw: random.Random, *, odd: float, twins: bool, most: int = 6) -> StructType:
    """A schema, always with a long `id` that may be null; `odd` is the share of odd names."""
    plain = [*NAMES[1:], *(TWINS if twins else ())]
    names: list[str] = []
    for _ in range(draw.randint(1, most - 1)):
        left = [name for name in (ODD_NAMES if draw.random() < odd else plain) if name not in names]
        names.append(draw.choice(left))
    fields = [StructField("id", LongType(), draw.random() < 0.5)]
    depth = draw.choice((0, 1, 1, 2))
    fields += [StructField(name, _column_type(draw, depth), draw.random() < 0.6) for name in names]
    draw.shuffle(fields)
    return StructType(fields)


def _column_type(draw: random.Random, depth: int) -> DataType:
    return draw.choice(_OWN_TYPES) if draw.random() < _OWN_SHARE else random_type(draw, depth)


def spelled(kind: DataType) -> str:
    """A type as Python text; PySpark's own does not escape names."""
    if isinstance(kind, StructType):
        fields = (f"StructField({one.name!r}, {spelled(one.dataType)}, {one.nullable})" for one in kind.fields)
        return f"StructType([{', '.join(fields)}])"
    if isinstance(kind, ArrayType):
        return f"ArrayType({spelled(kind.elementType)}, {kind.containsNull})"
    if isinstance(kind, MapType):
        return f"MapType({spelled(kind.keyType)}, {spelled(kind.valueType)}, {kind.valueContainsNull})"
    return repr(kind)


def rows_of(spark: Any, schema: StructType, seed: int, rows: int, partitions: int = 1) -> Any:
    """The DataFrame of a seed."""
    draw = random.Random(seed)  # noqa: S311 - nothing secret
    plain = StructType([_replaced(field) for field in schema.fields])
    arrow = to_arrow_schema(plain, timezone="UTC")
    columns = []
    for field, place in zip(plain.fields, arrow, strict=True):
        make = _maker(field.dataType, draw)
        made = [_perhaps(draw, make, nullable=field.nullable) for _ in range(rows)]
        columns.append(pa.array(made, place.type))
    frame = spark.createDataFrame(pa.Table.from_arrays(columns, schema=arrow), plain).coalesce(partitions)
    own = {field.name: field.dataType for field in schema.fields if _is_own(field.dataType)}
    if not own:
        return frame
    named = [(name, F.col("`" + name.replace("`", "``") + "`")) for name in schema.names]
    return frame.select(*((_of_number(own[name], of) if name in own else of).alias(name) for name, of in named))


def _replaced(field: StructField) -> StructField:
    """The field, a whole number in the place of what Spark makes of one."""
    return StructField(field.name, LongType(), field.nullable) if _is_own(field.dataType) else field


def _is_own(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_own(kind.elementType)
    if isinstance(kind, StructType):
        return any(_is_own(field.dataType) for field in kind.fields)
    return isinstance(kind, VectorUDT | VariantType | DayTimeIntervalType)


def _of_number(kind: DataType, number: Column) -> Column:
    """A value of one of Spark's own types."""
    if isinstance(kind, ArrayType):
        return F.when(number.isNotNull(), F.array(_of_number(kind.elementType, number), F.lit(None).cast("variant")))
    if isinstance(kind, StructType):
        return F.struct(*(_of_number(field.dataType, number).alias(field.name) for field in kind.fields))
    small = number % 1000
    if isinstance(kind, VectorUDT):
        return F.when(number.isNotNull(), array_to_vector(F.array(small.cast("double"), F.lit(0.5))))
    if isinstance(kind, VariantType):
        return F.parse_json(F.concat(F.lit('{"a": '), number.cast("string"), F.lit(', "b": [1, "x"]}')))
    return F.make_dt_interval(F.lit(0), small.cast("int"), F.lit(0), F.lit(0)).cast(kind)


def _perhaps(draw: random.Random, make: Callable[[], object], *, nullable: bool) -> object:
    return None if nullable and draw.random() < _NULL_SHARE else make()


def _maker(kind: DataType, draw: random.Random) -> Callable[[], object]:
    """Gives values of a type, few different ones in a part of the columns."""
    if isinstance(kind, ArrayType):
        element = _maker(kind.elementType, draw)
        nullable = kind.containsNull
        return lambda: [_perhaps(draw, element, nullable=nullable) for _ in range(draw.choice((0, 1, 1, 2, 5)))]
    if isinstance(kind, MapType):
        return _map_maker(kind, draw)
    if isinstance(kind, StructType):
        parts = [(field, _maker(field.dataType, draw)) for field in kind.fields]
        return lambda: {field.name: _perhaps(draw, make, nullable=field.nullable) for field, make in parts}
    make = _atom_maker(kind, draw)
    if draw.random() < 0.5:
        pool = [make() for _ in range(draw.randint(1, 6))]
        return lambda: draw.choice(pool)
    return make


def _map_maker(kind: MapType, draw: random.Random) -> Callable[[], object]:
    key, value = _maker(kind.keyType, draw), _maker(kind.valueType, draw)

    def make() -> object:
        keys = {key() for _ in range(draw.choice((0, 1, 2, 3)))}
        return [(each, _perhaps(draw, value, nullable=kind.valueContainsNull)) for each in sorted(keys, key=repr)]

    return make


def _atom_maker(kind: DataType, draw: random.Random) -> Callable[[], object]:
    if type(kind) in _INTEGERS:
        return lambda: _integer(draw, _INTEGERS[type(kind)])
    if isinstance(kind, DecimalType):
        return lambda: _decimal(draw, kind)
    makers: dict[type, Callable[[], object]] = {
        BooleanType: lambda: draw.random() < 0.5,
        FloatType: lambda: _double(draw),
        DoubleType: lambda: _double(draw),
        StringType: lambda: draw.choice(_TEXTS) + draw.choice(_TEXTS),
        BinaryType: lambda: draw.randbytes(draw.choice((0, 1, 3, 20))),
        DateType: lambda: _instant(draw, "date").date(),
        TimestampType: lambda: _instant(draw, "timestamp").replace(tzinfo=dt.UTC),
        TimestampNTZType: lambda: _instant(draw, "timestamp"),
    }
    return makers[type(kind)]


def _integer(draw: random.Random, bits: int) -> int:
    if draw.random() < _EDGE_SHARE:
        most = 1 << (bits - 1)
        return draw.choice((most - 1, -most, ((1 << 53) + 1) % most))
    return draw.randint(-50, 50)


def _double(draw: random.Random) -> float:
    if draw.random() < _EDGE_SHARE:
        return draw.choice((0.0, -0.0, float("nan"), float("inf"), -float("inf")))
    return draw.randint(-400, 400) / 4


def _decimal(draw: random.Random, kind: DecimalType) -> Decimal:
    digits = kind.precision if draw.random() < _EDGE_SHARE else min(kind.precision, 4)
    return Decimal((draw.randint(0, 1), tuple(draw.choices(range(10), k=digits)), -kind.scale))


def _instant(draw: random.Random, kind: str) -> dt.datetime:
    if draw.random() < _EDGE_SHARE / 4:
        start = draw.choice((dt.datetime(1, 1, 2), dt.datetime(1582, 10, 4), dt.datetime(9999, 12, 30)))  # noqa: DTZ001
    else:
        start = draw.choice((dt.datetime(2020, 3, 28), dt.datetime(2020, 10, 24), dt.datetime(1969, 12, 30)))  # noqa: DTZ001
    return start + dt.timedelta(microseconds=0 if kind == "date" else draw.randint(0, 86_400_000_000 - 1))
