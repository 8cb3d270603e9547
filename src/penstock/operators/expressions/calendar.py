# SPDX-License-Identifier: Apache-2.0
"""Dates and timestamps. A timestamp with a zone is an instant and is read in the session's zone, as in Spark.

A local time that does not exist (the clock was put forward) is moved on by the gap, one that exists twice is the
first, as Java has it. `date_format` knows the letters y, M, d, H, m and s.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.expressions.tree import Call, UnsupportedError, ValuesError
from penstock.operators.expressions.values import (
    Datum,
    Kernel,
    array_of,
    columns_of_rows,
    missing_in,
    number_scalar,
    numbers,
)

_MICROS = pa.timestamp("us")
_DAY = 86_400_000_000
_UNITS = {
    "year": "year",
    "yyyy": "year",
    "yy": "year",
    "quarter": "quarter",
    "month": "month",
    "mon": "month",
    "mm": "month",
    "week": "week",
    "day": "day",
    "dd": "day",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "millisecond": "millisecond",
    "microsecond": "microsecond",
}
_MONTHS = 12 * 5_000_000
"""So far are dates of 32 bits from 1970, a bit less."""
_WITHIN_A_DAY = ("hour", "minute", "second", "millisecond", "microsecond")
_LETTERS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


def arrow_zone(zone: str) -> str:
    """A zone of Java's as Arrow knows it: `GMT+02:00` is `+02:00`."""
    return zone[3:] if zone.startswith(("GMT+", "GMT-", "UTC+", "UTC-")) else "UTC" if zone in ("Z", "GMT") else zone


def local(value: Datum, zone: str) -> Datum:
    """The time that the clock on the wall showed, without a zone."""
    if value.type.tz is None:
        return value
    return pc.local_timestamp(value.cast(pa.timestamp("us", zone)))


def instant(value: Datum, zone: str) -> Datum:
    """When the clock on the wall showed this."""
    found = pc.assume_timezone(value.cast(_MICROS), zone, ambiguous="earliest", nonexistent="earliest")
    offset = pc.subtract(pc.local_timestamp(found), _plain(found))
    return pc.subtract(value.cast(_MICROS), offset).cast(pa.timestamp("us", "UTC"))


def _plain(value: Datum) -> Datum:
    """The instant's number of microseconds as a timestamp without zone."""
    return value.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(_MICROS)


def _part(function: Callable[[Datum], Datum]) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        value = values[0]
        if pt.is_timestamp(value.type):
            value = local(value, call.zone)
        return function(value).cast(call.type)

    return kernel


def _unit(text: object, call: Call) -> str:
    unit = _UNITS.get(str(text).lower())
    if unit is None:
        raise UnsupportedError(f"{call.function} to {text!r}")
    return unit


def _truncated(call: Call, values: list[Datum]) -> Datum:
    unit = _unit(call.text(0), call)
    value = values[1]
    shown = local(value, call.zone)
    floor = pc.floor_temporal(shown, unit=unit)
    if value.type.tz is None:
        return floor.cast(call.type)
    if unit in _WITHIN_A_DAY:
        return pc.subtract(value, pc.subtract(shown, floor)).cast(call.type)
    return instant(floor, call.zone)


def _truncated_date(call: Call, values: list[Datum]) -> Datum:
    unit = _unit(call.text(1), call)
    if unit in ("day", *_WITHIN_A_DAY):
        return pa.nulls(1, pa.date32())[0]
    return pc.floor_temporal(values[0], unit=unit).cast(pa.date32())


def _days(function: Callable[[Datum, Datum], Datum]) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        days = function(values[0].cast(pa.int32()), values[1].cast(pa.int32()))
        return days.cast(call.type)

    return kernel


def _last_day(call: Call, values: list[Datum]) -> Datum:
    next_month = pc.ceil_temporal(values[0], unit="month", ceil_is_strictly_greater=True).cast(pa.date32())
    return pc.subtract(next_month.cast(pa.int32()), number_scalar(1, pa.int32())).cast(pa.date32())


def _months_later(call: Call, values: list[Datum]) -> Datum:
    """The same day of another month, or its last one."""
    dates, months = columns_of_rows(values)
    if not pt.is_date32(dates.type):
        raise UnsupportedError(f"{call.function} of {dates.type}")
    missing = missing_in(dates, months)
    days = numbers(dates) if missing is None else np.where(missing, 0, numbers(dates))
    count = numbers(months) if missing is None else np.where(missing, 0, numbers(months))
    moment = days.astype("datetime64[D]")
    month = moment.astype("datetime64[M]")
    later = month + count.astype("timedelta64[M]")
    if np.any(np.abs(later.astype(np.int64)) > _MONTHS):
        raise ValuesError(f"{call.function} leaves the dates that there are")
    last = (later + 1).astype("datetime64[D]") - 1
    wanted = later.astype("datetime64[D]") + (moment - month.astype("datetime64[D]"))
    return array_of(np.minimum(wanted, last).astype(np.int64).astype(np.int32), pa.date32(), missing)


def _later(call: Call, values: list[Datum]) -> Datum:
    """An instant and a duration: whole days by the calendar of the zone, the rest by the clock."""
    if not pt.is_duration(values[1].type):
        raise UnsupportedError("a timestamp and an interval of months")
    duration = values[1].cast(pa.int64())
    value = values[0]
    days = pc.multiply(pc.divide(duration, number_scalar(_DAY, pa.int64())), number_scalar(_DAY, pa.int64()))
    rest = pc.subtract(duration, days).cast(pa.duration("us"))
    now = local(value, call.zone)
    shown = pc.add(now, days.cast(pa.duration("us")))
    if value.type.tz is None:
        return pc.add(shown, rest).cast(call.type)
    # A local time that exists twice keeps the offset that the first one had.
    same_offset = pc.subtract(shown, pc.subtract(now, _plain(value))).cast(pa.timestamp("us", "UTC"))
    is_there = pc.equal(local(same_offset, call.zone), shown)
    return pc.add(pc.if_else(is_there, same_offset, instant(shown, call.zone)), rest).cast(call.type)


def _difference(call: Call, values: list[Datum]) -> Datum:
    if values[0].type.tz is not None and call.option("legacyInterval"):
        raise UnsupportedError("a difference of timestamps as a calendar interval")
    end, start = (local(value, call.zone) for value in values)
    return pc.subtract(end, start).cast(pa.duration("us"))


def _date_difference(call: Call, values: list[Datum]) -> Datum:
    return pc.subtract(values[0].cast(_MICROS), values[1].cast(_MICROS)).cast(pa.duration("us"))


def _formatted(call: Call, values: list[Datum]) -> Datum:
    text = call.text(1)
    parts = re.findall(r"([A-Za-z])(\1*)|('[^']*')|([^A-Za-z'\[\]{}#]+)", text)
    if "".join(letter + more + quoted + other for letter, more, quoted, other in parts) != text:
        raise UnsupportedError(f"date_format with {text!r}")
    pieces = [""]
    for letter, more, quoted, other in parts:
        if letter + more == "y":
            pieces.append("")  # a year with as many digits as it has, which strftime lacks
            continue
        if letter and letter + more not in _LETTERS:
            raise UnsupportedError(f"date_format with {letter + more!r}")
        pieces[-1] += (
            _LETTERS[letter + more] if letter else (quoted[1:-1] or "'" if quoted else other).replace("%", "%%")
        )
    seconds = pc.floor_temporal(local(values[0], call.zone), unit="second").cast(pa.timestamp("s"))
    if len(pieces) == 1:
        return pc.strftime(seconds, format=pieces[0])
    year = pc.year(seconds).cast(pa.string())
    return pc.binary_join_element_wise(*(pc.strftime(seconds, format=piece) for piece in pieces), year)


def _since_epoch(unit: int) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        value = values[0]
        if not (pt.is_timestamp(value.type) and value.type.tz):
            raise UnsupportedError(f"{call.function} of {value.type}")
        return floored(value.cast(pa.int64()), unit)

    return kernel


def _cut_seconds(call: Call, values: list[Datum]) -> Datum:
    """As `unix_timestamp` has it, which rounds towards 1970, unlike `unix_seconds`."""
    return pc.divide(_since_epoch(1)(call, values), number_scalar(1_000_000, pa.int64()))


def floored(micros: Datum, unit: int) -> Datum:
    """A number divided by a unit, rounded down."""
    if unit == 1:
        return micros
    (column,) = columns_of_rows([micros])
    return array_of(numbers(column) // unit, pa.int64(), missing_in(column))


def _from_epoch(unit: int) -> Kernel:
    def kernel(call: Call, values: list[Datum]) -> Datum:
        if not pt.is_integer(values[0].type):
            raise UnsupportedError(f"{call.function} of {values[0].type}")
        micros = pc.multiply_checked(values[0].cast(pa.int64()), number_scalar(unit, pa.int64()))
        return micros.cast(pa.timestamp("us", "UTC"))

    return kernel


CALENDAR: dict[str, Kernel] = {
    "Year": _part(pc.year),
    "Quarter": _part(pc.quarter),
    "Month": _part(pc.month),
    "DayOfMonth": _part(pc.day),
    "DayOfYear": _part(pc.day_of_year),
    "DayOfWeek": _part(lambda value: pc.day_of_week(value, count_from_zero=False, week_start=7)),
    "WeekDay": _part(pc.day_of_week),
    "WeekOfYear": _part(pc.iso_week),
    "YearOfWeek": _part(pc.iso_year),
    "Hour": _part(pc.hour),
    "Minute": _part(pc.minute),
    "Second": _part(pc.second),
    "TruncTimestamp": _truncated,
    "TruncDate": _truncated_date,
    "DateAdd": _days(pc.add),
    "DateSub": _days(pc.subtract),
    "DateDiff": _days(pc.subtract),
    "LastDay": _last_day,
    "AddMonths": _months_later,
    "TimestampAddInterval": _later,
    "SubtractTimestamps": _difference,
    "SubtractDates": _date_difference,
    "DateFormatClass": _formatted,
    "UnixTimestamp": _cut_seconds,
    "ToUnixTimestamp": _cut_seconds,
    "UnixSeconds": _since_epoch(1_000_000),
    "UnixMillis": _since_epoch(1_000),
    "UnixMicros": _since_epoch(1),
    "UnixDate": lambda call, values: values[0].cast(pa.int32()),
    "DateFromUnixDate": lambda call, values: values[0].cast(pa.date32()),
    "SecondsToTimestamp": _from_epoch(1_000_000),
    "MillisToTimestamp": _from_epoch(1_000),
    "MicrosToTimestamp": _from_epoch(1),
}
