# SPDX-License-Identifier: Apache-2.0
"""Random SQL expressions over one table, and the table: numbers, text, dates and instants with nulls and NaN.

Numbers are small, so that few expressions overflow; where one raises an error, both sides must.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa

ROWS = 60
_WORDS = ["", "a", "été", "Straße", "x1-y22", " pad ", "Abc", "12", "a-b-c", "%_"]


def table(seed: int) -> pa.Table:
    """Columns i, v (whole numbers), x, y (doubles), d (decimal), k, s (text), t (date), ts (instant), b (boolean)."""
    draw = random.Random(seed)

    def column(make: Callable[[], object], kind: pa.DataType) -> pa.Array:
        return pa.array([None if draw.random() < 0.15 else make() for _ in range(ROWS)], kind)

    def double() -> float:
        return draw.choice([0.0, -0.0, float("nan"), 2.675, draw.uniform(-50, 50), float(draw.randint(-9, 9))])

    def instant() -> dt.datetime:
        # Around both changes of the clock, and before 1970.
        start = draw.choice([dt.date(2020, 3, 28), dt.date(2020, 10, 24), dt.date(1969, 12, 30)])
        return dt.datetime.combine(start, dt.time(), dt.UTC) + dt.timedelta(seconds=draw.uniform(0, 3 * 86400))

    return pa.table(
        {
            "i": column(lambda: draw.randint(-50, 50), pa.int32()),
            "v": column(lambda: draw.randint(-50, 50), pa.int64()),
            "x": column(double, pa.float64()),
            "y": column(double, pa.float64()),
            "d": column(lambda: Decimal(draw.randint(-9999, 9999)).scaleb(-2), pa.decimal128(10, 2)),
            "k": column(lambda: draw.choice(_WORDS), pa.string()),
            "s": column(lambda: draw.choice(_WORDS) + draw.choice(_WORDS), pa.string()),
            "t": column(lambda: dt.date(2020, 1, 1) + dt.timedelta(days=draw.randint(-20000, 2000)), pa.date32()),
            "ts": column(instant, pa.timestamp("us", "UTC")),
            "b": column(lambda: draw.random() < 0.5, pa.bool_()),
        }
    )


LEAVES = {
    "W": "i; v; 7; -3",
    "D": "x; y; 2.5D",
    "C": "d; 1.50; cast(i as decimal(6, 1))",
    "S": "k; s; 'lit'",
    "B": "b; (v > 3); (x < y)",
    "T": "t; date'2020-02-29'",
    "I": "ts",
}
"""Whole numbers, doubles, decimals, texts, booleans, dates and instants that hold nothing else."""

FORMS = {
    "W": """({W} + {W}); ({W} - {W}); ({W} * {n}); abs({W}); (-({W})); ({W} % {n}); pmod({W}, {n}); ({W} div {n});
        length({S}); coalesce({W}, {W}, 0); if({B}, {W}, {W}); nullif({W}, {n}); year({T}); dayofweek({T}); day({I});
        case when {B} then {W} when {B} then {W} end; case when {W} <> 0 then 100 div {n} else {W} end; hour({I});
        datediff({T}, {T}); cast({B} as int); greatest({W}, {W}); least({W}, {W}, {n}); instr({S}, 'a');
        cast({C} as int); weekofyear({T})""",
    "D": """({D} + {D}); ({D} * {D}); ({D} - {D}); ({W} / {n}); round({D}, 1); sqrt(abs({D})); abs({D}); (-({D}));
        cast({W} as double); nanvl({D}, {D}); if({B}, {D}, {D}); coalesce({D}, 0D); greatest({D}, {D});
        cast({C} as double); try_divide({D}, {D}); least({D}, {D})""",
    "C": """({C} + {C}); ({C} - {C}); (d * {n}); (d * d); round({C}, 1); abs({C}); coalesce({C}, 0.5); (d / {n});
        if({B}, {C}, {C}); cast({C} as decimal(20, 1))""",
    "S": """upper({S}); substring({S}, {n}, 2); substring({S}, -{n}, 3); concat({S}, '-', {S}); trim({S});
        reverse({S}); concat_ws('/', {S}, {S}); replace({S}, 'a', 'bb'); lpad({S}, {n}, '*'); coalesce({S}, 'none');
        left({S}, {n}); cast({W} as string); if({B}, {S}, {S}); repeat({S}, 2);
        regexp_replace({S}, '([0-9]+)', '<$1>'); regexp_extract({S}, '([a-z])([0-9]*)', 2); cast({T} as string);
        date_format({I}, 'yyyy-MM-dd HH:mm'); cast({I} as string); rpad({S}, 4, ' ')""",
    "B": """({W} > {W}); ({D} >= {D}); ({D} = {D}); ({D} <=> {D}); ({S} = {S}); ({S} < {S}); (not {B}); ({B} and {B});
        ({B} or {B}); ({W} in (1, {n}, 7)); ({W} in ({n}, null)); ({S} like '%a_'); ({S} is null); ({D} is not null);
        isnan({D}); startswith({S}, 'a'); ({T} > date'2019-06-01'); ({W} between {n} and 30); ({C} <= {C});
        ({S} rlike '^[a-z]'); ({I} < timestamp'2020-03-29 02:30:00')""",
    "T": """date_add({T}, {n}); date_sub({T}, {n}); last_day({T}); add_months({T}, {n}); cast({I} as date);
        trunc({T}, 'month'); trunc({T}, 'week'); coalesce({T}, date'1970-01-01'); if({B}, {T}, {T})""",
    "I": """date_trunc('day', {I}); date_trunc('hour', {I}); date_trunc('week', {I}); cast({T} as timestamp);
        ({I} + interval {n} hours); ({I} + interval {n} days); ({I} - interval {n} minutes); if({B}, {I}, {I});
        coalesce({I}, timestamp'2020-10-25 02:30:00')""",
}
"""Expressions of each type with places for others, `{n}` for a small number."""


class Grammar:
    """Draws expressions by their type; deeper ones are made of others."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def expression(self) -> str:
        """One of any type."""
        return self._of(self._draw.choice(list(FORMS)), 3)

    def _of(self, kind: str, depth: int) -> str:
        if kind == "n":
            return str(self._draw.randint(1, 9))
        if depth == 0 or self._draw.random() < 0.2:
            return self._draw.choice(LEAVES[kind].split("; "))
        form = self._draw.choice([form.strip() for form in FORMS[kind].split(";")])
        # Arithmetic of decimals grows their digits, which end at 38.
        below = min(depth - 1, 1) if kind == "C" else depth - 1
        return re.sub(r"\{(\w)\}", lambda place: self._of(place[1], below), form)
