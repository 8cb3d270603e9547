# SPDX-License-Identifier: Apache-2.0
"""Joins whose keys have other types on each side: rows meet by a type of both, as Spark compares them.

Spark's analyser says to what each key is cast. The cast key is a column of its own, by which rows are exchanged and
met; the sides' own keys stay as they are, for the result has them: the right side's of a right join, the first that
is there of a full one, else the left side's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.expressions import Computed, ExpressionReader, projected
from penstock.errors import SchemaError
from penstock.graph import INTERNAL
from penstock.operators.aggregates import plain_type
from penstock.operators.exchanges import hash_exchange
from penstock.operators.expressions import Call
from penstock.operators.verbs import Project

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream

_ONE, _OTHER = f"{INTERNAL}left", f"{INTERNAL}right"


@dataclass(frozen=True, slots=True)
class CastKeys:
    """The sides' own keys, those of them that meet as another type, and how a join's result is made of both."""

    keys: tuple[str, ...]
    places: tuple[int, ...]
    how: str
    session: Any

    def result(self, schema: pa.Schema) -> Project:
        """The columns of the join as if the sides' own keys had met."""
        reading = ExpressionReader(schema, self.session, "join")
        keys = [self._key(reading, place, name) for place, name in enumerate(self.keys)]
        own = {*self.keys, *(_other(place) for place in self.places)}
        others = [name for name in schema.names[len(keys) :] if name not in own]
        return projected([*keys, *map(reading.column, others)], "join")

    def _key(self, reading: ExpressionReader, place: int, name: str) -> Computed:
        if place not in self.places or self.how not in ("right", "full"):
            return reading.column(name)
        found = reading.column(_other(place))
        if self.how == "full":
            (found,) = reading.computed([f"coalesce(`{_quoted(name)}`, `{_other(place)}`)"])
        return Computed(found.field.with_name(name), found.expression)


def other_types(left: KeyedStream, right: KeyedStream) -> list[int]:
    """The places of keys whose types differ."""
    pairs = [
        [plain_type(side.schema.field(key).type) for side, key in ((left, one), (right, other))]
        for one, other in zip(left.keys, right.keys, strict=True)
    ]
    return [place for place, (one, other) in enumerate(pairs) if one != other]


def of_other_types(verb: str, left: KeyedStream, right: KeyedStream, place: int, reason: str = "") -> SchemaError:
    """The refusal of a pair of keys."""
    shown = [
        f"{side.keys[place]!r} of the {name} side is {side.schema.field(side.keys[place]).type}"
        for side, name in ((left, "left"), (right, "right"))
    ]
    return SchemaError(
        f"{verb}: keys must have the same type; {', '.join(shown)}{reason}: cast one of them with withColumn before"
        " keyBy"
    )


def with_one_type(
    left: KeyedStream, right: KeyedStream, how: str
) -> tuple[KeyedStream, KeyedStream, CastKeys] | None:
    """Both sides with keys that Spark would compare; None where the types are the same.

    Raises SchemaError where it would not compare them, or where Arrow has no such cast.
    """
    places = tuple(other_types(left, right))
    if not places:
        return None
    session = left.session or right.session
    if session is None:
        raise of_other_types("join", left, right, places[0])
    kinds = {place: _kind(left, right, place, session) for place in places}
    theirs = {place: _other(place) if how in ("right", "full") else None for place in places}
    one = _with_cast(left, kinds, dict.fromkeys(places) if how == "right" else {}, session)
    return one, _with_cast(right, kinds, theirs, session), CastKeys(left.keys, places, how, session)


def _kind(left: KeyedStream, right: KeyedStream, place: int, session: Any) -> str:
    """The type, as SQL has it, in which Spark compares a pair of keys."""
    fields = [side.schema.field(side.keys[place]) for side in (left, right)]
    schema = pa.schema([field.with_name(name) for field, name in zip(fields, (_ONE, _OTHER), strict=True)])
    try:
        (found,) = ExpressionReader(schema, session, "join").computed([f"`{_ONE}` = `{_OTHER}`"])
    except SchemaError as error:
        lacking = str(error).partition("Arrow batches: ")[2].partition(";")[0]
        raise of_other_types(
            "join", left, right, place, f", and {lacking or 'Spark compares no such types'}"
        ) from error
    if not (isinstance(found.expression, Call) and found.expression.function == "EqualTo"):
        raise of_other_types("join", left, right, place)
    from penstock.spark.types import struct_type

    one, other = (argument.type for argument in found.expression.arguments)
    if one != other:
        raise of_other_types("join", left, right, place)
    return str(struct_type(pa.schema([("key", one)]))[0].dataType.simpleString())


def _with_cast(
    side: KeyedStream, kinds: dict[int, str], renamed: Mapping[int, str | None], session: Any
) -> KeyedStream:
    """A side with the cast keys; its own have other names if they are renamed, and go where that is None."""
    from penstock.api.keyed_stream import KeyedStream

    reading = ExpressionReader(side.schema, session, "join")
    own = {side.keys[place]: name for place, name in renamed.items()}
    kept = [
        Computed(one.field.with_name(own.get(one.field.name) or one.field.name), one.expression)
        for one in reading.columns()
        if own.get(one.field.name, "") is not None
    ]
    casts = reading.computed([f"CAST(`{_quoted(side.keys[place])}` AS {kind})" for place, kind in kinds.items()])
    made = [
        Computed(one.field.with_name(_cast(place)), one.expression) for place, one in zip(kinds, casts, strict=True)
    ]
    keys = tuple(_cast(place) if place in kinds else key for place, key in enumerate(side.keys))
    rows = side.upstream.projected(projected([*kept, *made], "join"))
    return KeyedStream(rows, keys, hash_exchange(rows.schema, keys), side.input().choice)


def _cast(place: int) -> str:
    return f"{INTERNAL}key{place}"


def _other(place: int) -> str:
    return f"{INTERNAL}right{place}"


def _quoted(name: str) -> str:
    return name.replace("`", "``")
