# SPDX-License-Identifier: Apache-2.0
"""Random SQL over the columns of a schema: conditions and values, into structs, lists and maps too."""

from __future__ import annotations

import random

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_FORMS: dict[str, str] = {
    "integer": "{c} + 1; {c} % 7; -{c}; abs({c}); coalesce({c}, 0); cast({c} as string); cast({c} as decimal(25, 3));"
    " cast({c} as double); if({c} > 3, {c}, null); {c} * 2",
    "fraction": "{c} + 1.5D; abs({c}); coalesce({c}, 0D); nanvl({c}, 1D); cast({c} as float); -{c}",
    "decimal": "{c} + 1; {c} * 2; -{c}; abs({c}); coalesce({c}, 0); cast({c} as double); round({c}, 1); {c} - {c}",
    "string": "upper({c}); length({c}); concat({c}, '-', {c}); substring({c}, 2, 3); coalesce({c}, ''); trim({c});"
    " reverse({c}); split({c}, ' ')",
    "binary": "length({c}); coalesce({c}, X'00'); hex({c})",
    "boolean": "not {c}; coalesce({c}, true); cast({c} as int); {c} and true",
    "date": "date_add({c}, 3); year({c}); cast({c} as string); cast({c} as timestamp);"
    " coalesce({c}, date'2020-01-01')",
    "timestamp": "cast({c} as date); hour({c}); date_trunc('day', {c}); {c} + interval 3 hours;"
    " coalesce({c}, timestamp'2020-10-25 02:30:00')",
    "local": "cast({c} as date); hour({c}); coalesce({c}, timestamp_ntz'2020-10-25 02:30:00')",
    "array": "size({c}); array({c}); coalesce({c}, {c}); cardinality({c})",
    "map": "size({c}); map_keys({c}); map_values({c})",
    "struct": "struct({c}); coalesce({c}, {c})",
}
_CONDITIONS: dict[str, str] = {
    "integer": "{c} > 0; {c} in (1, 2, 3, null); {c} between -20 and 20; {c} <=> 3",
    "fraction": "{c} > 0; isnan({c}); {c} = {c}; {c} <= 1.5D",
    "decimal": "{c} > 0; {c} <= 12.5; {c} <> 0",
    "string": "{c} like '%a%'; {c} = ''; length({c}) > 2; {c} > 'b'",
    "binary": "length({c}) > 0; {c} = X''",
    "boolean": "{c}; not {c}; {c} <=> true",
    "date": "{c} > date'2000-01-01'; year({c}) = 2020",
    "timestamp": "{c} > timestamp'2020-03-28 12:00:00'; hour({c}) < 12",
    "local": "{c} > timestamp_ntz'2020-03-28 12:00:00'; hour({c}) < 12",
    "array": "size({c}) > 1; size({c}) = 0",
    "map": "size({c}) > 1; cardinality({c}) >= 0",
    "struct": "{c} is not null",
}
_LITERALS = (
    "1; 'lit'; 2.5; 1.5D; true; date'2020-02-29'; null; array(1, 2); struct(1 as x, 'a' as y); map('a', 1);"
    " cast(null as int); named_struct('x', cast(null as string)); array(1, null); X'01'; 9000000000"
)


def quoted(name: str) -> str:
    """A column's name as SQL."""
    return "`" + name.replace("`", "``") + "`"


def family(kind: DataType) -> str:
    """Which forms a type has."""
    tests: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (IntegralType, "integer"),
        (DecimalType, "decimal"),
        (FractionalType, "fraction"),
        (StringType, "string"),
        (BinaryType, "binary"),
        (BooleanType, "boolean"),
        (DateType, "date"),
        (TimestampType, "timestamp"),
        (TimestampNTZType, "local"),
        (ArrayType, "array"),
        (MapType, "map"),
        (StructType, "struct"),
    )
    return next((name for test, name in tests if isinstance(kind, test)), "other")


def is_flat(kind: DataType) -> bool:
    """Tell whether a type holds no others."""
    return family(kind) not in ("array", "map", "struct", "other")


def has_map(kind: DataType) -> bool:
    """Tell whether a map is anywhere in a type: Spark neither compares nor groups these."""
    if isinstance(kind, ArrayType):
        return has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType)


def has_odd_map(kind: DataType) -> bool:
    """Tell whether a map whose keys are no strings is anywhere in a type."""
    if isinstance(kind, ArrayType):
        return has_odd_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(has_odd_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType) and (not isinstance(kind.keyType, StringType) or has_odd_map(kind.valueType))


def random_value(draw: random.Random, schema: StructType) -> str:
    """An expression of any type."""
    if draw.random() < 0.2:
        return _one_of(draw, _LITERALS)
    text, kind = _place(draw, schema)
    forms = _FORMS.get(family(kind))
    return text if forms is None or draw.random() < 0.2 else _one_of(draw, forms).replace("{c}", text)


def random_condition(draw: random.Random, schema: StructType) -> str:
    """A condition, of one or two parts."""
    text, kind = _place(draw, schema)
    if draw.random() < 0.35:
        found = f"{text} is {draw.choice(('', 'not '))}null"
    else:
        found = _one_of(draw, _CONDITIONS.get(family(kind), "true")).replace("{c}", text)
    if draw.random() < 0.25:
        return f"({found}) {draw.choice(('and', 'or'))} ({random_condition(draw, schema)})"
    return found


def _place(draw: random.Random, schema: StructType) -> tuple[str, DataType]:
    """A column, or a part of one."""
    field = draw.choice(schema.fields)
    text, kind = quoted(field.name), field.dataType
    while draw.random() < 0.6:
        if isinstance(kind, StructType) and kind.fields:
            inner = draw.choice(kind.fields)
            text, kind = f"{text}.{quoted(inner.name)}", inner.dataType
        elif isinstance(kind, ArrayType):
            text, kind = f"get({text}, {draw.randint(0, 1)})", kind.elementType
        elif isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
            text, kind = f"{text}['a']", kind.valueType
        else:
            break
    return text, kind


def _one_of(draw: random.Random, forms: str) -> str:
    return draw.choice([form.strip() for form in forms.split(";")])
