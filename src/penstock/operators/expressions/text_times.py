# SPDX-License-Identifier: Apache-2.0
"""Text as dates and timestamps, in all forms that Spark reads: null for each text that is none.

Text in the usual form is Arrow's to read; text in another one, or all if a day is one that no month has, goes through
one regular expression and NumPy.

Limits: a time without a date (Spark takes the day of the query), and zones by name or in other forms than `Z`, `UTC`
and `+01:00`, are refused, as Spark has a value for them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.expressions.calendar import instant
from penstock.operators.expressions.number_casts import null_but
from penstock.operators.expressions.text_casts import matches, trimmed
from penstock.operators.expressions.tree import Call
from penstock.operators.expressions.values import (
    EMPTY,
    TRUE,
    Datum,
    any_true,
    array_of,
    columns_of_rows,
    missing_in,
    numbers,
    refuse_where,
    text_scalar,
)

_USUAL_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_USUAL_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?$"
_DAY = r"(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
_DATE = r"(?s)^(?P<sign>[+-]?)(?P<year>[0-9]{4,7})" + _DAY + "(?:[ T].*)?)?)?$"
_TIMESTAMP = (
    r"(?s)^(?P<sign>[+-]?)(?P<year>[0-9]{4,6})"
    + _DAY
    + r"(?:[ T](?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})"
    r"(?:\.(?P<part>[0-9]*))?(?P<zone>[^0-9.].*|\..+)?)?)?)?)?)?$"
)
_TIME = r"(?s)^(T[0-9]{1,2}|[0-9]{1,2}:[0-9]{1,2})(:[0-9]{1,2}){0,2}(\.[0-9]*)?([^0-9:.].*)?$"
_ZONE = r"^(?:Z|(?:UTC|GMT|UT)?(?:(?P<side>[+-])(?P<hours>[0-9]{1,2})(?::(?P<minutes>[0-9]{1,2}))?)?)$"
_OTHER_ZONE = r"^([A-Za-z][A-Za-z0-9~/._+:-]+|[+-]([0-9]{4}|[0-9]{6}|[0-9]{1,2}:[0-9]{2}:[0-9]{2}))$"
_MICROS_OF_A_DAY = 86_400_000_000

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Read = Callable[[Datum], Datum]


def text_to_date(call: Call, value: Datum) -> Datum:
    """A year, a month or a day; what stands behind a day and a space is not read."""

    def others(text: pa.Array) -> pa.Array:
        days, good = _days(_fields(text, _DATE))
        small = days.astype(np.int32)
        return array_of(small, pa.date32(), _lost(text, good & (small == days)))

    return _read(trimmed(value), _USUAL_DATE, lambda text: text.cast(call.type), others)


def text_to_timestamp(call: Call, value: Datum) -> Datum:
    """A date and perhaps a time of its day; the session's zone is that of times that name none."""

    def usual(text: Datum) -> Datum:
        shown = text.cast(pa.timestamp("us"))
        return shown if call.type.tz is None else instant(shown, call.zone)

    return _read(trimmed(value), _USUAL_TIMESTAMP, usual, lambda text: _timestamps(call, text))


def _read(text: Datum, pattern: str, usual: Read, others: Read) -> Datum:
    """Text of the usual form read in one way, the rest in the other; all of it, where the first way fails."""
    is_usual = matches(text, pattern)
    if not any_true(pc.invert(is_usual)):
        try:
            return usual(text)
        except pa.ArrowInvalid:  # as no month has that day, no day that hour
            return others(columns_of_rows([text])[0])
    (text, is_usual) = columns_of_rows([text, is_usual])
    is_other = pc.invert(pc.coalesce(is_usual, TRUE))
    found = _read(null_but(is_usual, text), pattern, usual, others)
    return pc.replace_with_mask(found, is_other, others(text.filter(is_other)))


def _timestamps(call: Call, text: pa.Array) -> pa.Array:
    if call.type.tz is not None:
        refuse_where(matches(text, _TIME), text, "is a time without a date, which cannot be read here")
    fields = _fields(text, _TIMESTAMP)
    zone = pc.utf8_trim(fields["zone"], characters=" ")
    has_zone = pc.not_equal(fields["zone"], EMPTY)
    known = matches(zone, _ZONE)
    other = pc.and_(pc.and_(has_zone, pc.invert(known)), matches(zone, _OTHER_ZONE))
    refuse_where(other, text, "names its time zone in a form that cannot be read here")
    offset, has_offset = _offsets(zone)
    micros, good = _micros(fields)
    explicit = _bits(has_zone)
    good &= ~explicit | (_bits(known) & has_offset & (_bits(pc.not_equal(zone, EMPTY))))
    shown = array_of(micros, pa.timestamp("us"), _lost(text, good))
    if call.type.tz is None:
        return shown
    moved = micros - offset
    good &= ~explicit | ((micros >= 0) == (moved >= 0)) | (np.abs(micros) < 2 * _MICROS_OF_A_DAY)
    exact = array_of(moved, call.type, _lost(text, good))
    in_session = instant(null_but(pc.invert(has_zone), shown), call.zone)
    return pc.if_else(has_zone, exact, in_session)


def _fields(text: pa.Array, pattern: str) -> dict[str, pa.Array]:
    """The parts by their names, of texts that match; else nothing but empty ones, without a year."""
    found = pc.extract_regex(text, pattern)
    names = [found.type.field(place).name for place in range(found.type.num_fields)]
    return {name: pc.if_else(found.is_valid(), found.field(name), EMPTY) for name in names}


def _number(text: pa.Array, otherwise: str) -> Numbers:
    filled = pc.if_else(pc.equal(text, EMPTY), text_scalar(otherwise), text)
    return numbers(filled.cast(pa.int64()))


def _days(fields: dict[str, pa.Array]) -> tuple[Numbers, Mask]:
    """Days from 1970, and which are some."""
    year = _number(fields["year"], "-1")
    good = year >= 0
    year = np.where(_bits(pc.equal(fields["sign"], text_scalar("-"))), -year, year)
    month, day = _number(fields["month"], "1"), _number(fields["day"], "1")
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    last = ((months + 1).astype("datetime64[D]") - months.astype("datetime64[D]")).astype(np.int64)
    good &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= last)
    return months.astype("datetime64[D]").astype(np.int64) + day - 1, good


def _micros(fields: dict[str, pa.Array]) -> tuple[Numbers, Mask]:
    """Microseconds from 1970 as the clock showed them, and which are some."""
    days, good = _days(fields)
    hour, minute, second = (_number(fields[name], "0") for name in ("hour", "minute", "second"))
    good &= (hour < 24) & (minute < 60) & (second < 60)
    part = _number(pc.utf8_rpad(pc.utf8_slice_codeunits(fields["part"], 0, 6), 6, padding="0"), "0")
    micros = days * _MICROS_OF_A_DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + part
    # A product that has left 64 bits has the other sign: no year has more than six digits.
    return micros, good & ((days >= 0) == (micros >= 0))


def _offsets(zone: pa.Array) -> tuple[Numbers, Mask]:
    """Microseconds ahead of UTC, and which are at most 18 hours."""
    fields = _fields(zone, _ZONE)
    hours, minutes = _number(fields["hours"], "0"), _number(fields["minutes"], "0")
    ahead = hours * 60 + minutes
    good = (minutes < 60) & (ahead <= 18 * 60)
    signed = np.where(_bits(pc.equal(fields["side"], text_scalar("-"))), -ahead, ahead)
    return signed * 60_000_000, good


def _bits(mask: pa.Array) -> Mask:
    return numbers(mask.cast(pa.int8())).astype(np.bool_)


def _lost(text: pa.Array, good: Mask) -> Mask | None:
    missing = missing_in(text)
    lost = ~good if missing is None else ~good | missing
    return lost if lost.any() else None
