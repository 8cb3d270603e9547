# SPDX-License-Identifier: Apache-2.0
"""Days and instants of files that count them by the calendar of Julius Caesar before 1582-10-15, as Spark 2 did.

Spark 3 and later do so too in the mode LEGACY, and say it in the file's footer. Arrow, and Spark since, count by
Gregory's calendar at all times. The same date is another number of days then, and before about 1900 the same time of
day in a zone is another instant: the old clock knew no local mean time. Each zone's differences come from Spark's own
table (`penstock.spark.calendars`).

Facts are those of Spark's `RebaseDateTime` and `DataSourceUtils`: the tests compare with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import SchemaError

Numbers = npt.NDArray[np.int64]

_VERSION, _ZONE = b"org.apache.spark.version", b"org.apache.spark.timeZone"
_OF_TIMES = ("3.0.0", b"org.apache.spark.legacyDateTime")
_OF_INT96 = ("3.1.0", b"org.apache.spark.legacyINT96")
"""The first version that writes the new calendar, and the key that says that it did not."""
_DAY = 86_400
_SWITCH = -141_427
"""1582-10-15, from which on there is no difference, in days."""
_JULIAN_MARCH = 719_470
"""The days from March of the year 0 in the old calendar to 1970."""
_YEAR_ONE = -719_164
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
CORRECTED, LEGACY = "CORRECTED", "LEGACY"


@dataclass(frozen=True, slots=True)
class ZoneShifts:
    """One zone's differences in seconds, each from its `switches` on."""

    switches: tuple[int, ...]
    diffs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Calendars:
    """A session's knowledge of old files: the shifts of some zones, and the modes where a footer does not say.

    `times` and `int96` are the modes of `spark.sql.parquet.datetimeRebaseModeInRead` and of `int96RebaseModeInRead`:
    they hold for files that Spark has not written.
    """

    zones: Mapping[str, ZoneShifts] = field(default_factory=dict)
    zone: str = ""
    times: str = CORRECTED
    int96: str = CORRECTED


NEW_CALENDAR = Calendars()
"""All that is known without a session: a file's days can be read, instants of a zone can not."""


@dataclass(frozen=True, slots=True)
class OldFile:
    """The parts of a file that are in the old calendar."""

    times: bool
    int96: bool
    zone: str

    @classmethod
    def of(cls, footer: Mapping[bytes, bytes] | None, calendars: Calendars) -> OldFile | None:
        """The parts that a footer's pairs name; None where the file is like any other."""
        known = footer or {}
        times, int96 = _is_old(known, _OF_TIMES, calendars.times), _is_old(known, _OF_INT96, calendars.int96)
        return cls(times, int96, known.get(_ZONE, b"").decode() or calendars.zone) if times or int96 else None


def _is_old(footer: Mapping[bytes, bytes], mark: tuple[str, bytes], mode: str) -> bool:
    version = footer.get(_VERSION)
    if version is None:
        return mode == LEGACY
    return version.decode() < mark[0] or mark[1] in footer


class Rebase:
    """Brings the columns of one file to the new calendar; `place` names the file in errors."""

    def __init__(self, old: OldFile, calendars: Calendars, place: str) -> None:
        self._old = old
        self._calendars = calendars
        self._place = place

    def is_needed(self, kind: pa.DataType, leaves: list[str]) -> bool:
        """Tell whether a column has days or instants of the old calendar; its leaves are of these physical types."""
        return any(self._is_old(each, leaf) for each, leaf in zip(_leaf_types(kind), leaves, strict=True))

    def column(self, column: pa.Array, leaves: list[str]) -> pa.Array:
        """A column of the file, with the physical types of its leaves; raises SchemaError for a zone not known."""
        return self._changed(column, iter(leaves))

    def _is_old(self, kind: pa.DataType, leaf: str) -> bool:
        if leaf == "INT96":
            return self._old.int96
        return self._old.times and bool(pt.is_date32(kind) or (pt.is_timestamp(kind) and kind.tz is not None))

    def _changed(self, column: pa.Array, leaves: Iterator[str]) -> pa.Array:
        kind = column.type
        if pt.is_struct(kind):
            parts = [self._changed(column.field(place), leaves) for place in range(kind.num_fields)]
            mask = column.is_null() if column.null_count else None
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
        if kind.num_fields:
            kept = column.buffers()[: 1 if pt.is_fixed_size_list(kind) else 2]
            values = self._changed(_values(column), leaves)
            return pa.Array.from_buffers(kind, len(column), kept, column.null_count, column.offset, [values])
        if not self._is_old(kind, next(leaves)):
            return column
        width = np.dtype(np.int32 if pt.is_date32(kind) else np.int64)
        valid, data = column.buffers()
        numbers = np.frombuffer(data, width, len(column), column.offset * width.itemsize).astype(np.int64)
        found = _new_days(numbers) if pt.is_date32(kind) else self._new_instants(numbers, _PER_SECOND[kind.unit])
        whole = pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(found.astype(width))])
        return whole if not column.null_count else _with_nulls(whole, valid, column)

    def _new_instants(self, instants: Numbers, per_second: int) -> Numbers:
        shifts = self._calendars.zones.get(self._old.zone)
        if shifts is None:
            raise SchemaError(
                f"{self._place}: its instants are of the calendar before 1582 in the time zone {self._old.zone!r},"
                " whose differences this stream does not know: read it with Spark, and write it again"
            )
        switches, diffs = (np.array(each, np.int64) * per_second for each in (shifts.switches, shifts.diffs))
        place = np.searchsorted(switches, instants, side="right") - 1
        found: Numbers = instants + diffs[np.maximum(place, 0)]
        if (early := place < 0).any():
            day = _DAY * per_second
            local = instants[early] + (_YEAR_ONE * day - switches[0])
            days = local // day
            found[early] = instants[early] + (_new_days(days) - days) * day + diffs[0] - 2 * day
        return found


def _new_days(days: Numbers) -> Numbers:
    """Days since 1970 by which the new calendar has the dates that the old one has by these."""
    year = (4 * (days + _JULIAN_MARCH) + 3) // 1461  # years that begin in March
    return np.where(days < _SWITCH, days + 2 - year // 100 + year // 400, days)


def _with_nulls(whole: pa.Array, valid: pa.Buffer, column: pa.Array) -> pa.Array:
    """The values, null where the column is."""
    if column.offset % 8:
        valid = column.is_valid().buffers()[1]
        return pa.Array.from_buffers(whole.type, len(whole), [valid, whole.buffers()[1]], column.null_count)
    bits = valid.slice(column.offset // 8)
    return pa.Array.from_buffers(whole.type, len(whole), [bits, whole.buffers()[1]], column.null_count)


def _values(column: pa.Array) -> pa.Array:
    """All that lists and maps hold, whatever part of them a slice has."""
    if not pt.is_map(column.type):
        return column.values
    entries = pa.struct([column.type.key_field, column.type.item_field])
    return pa.StructArray.from_arrays([column.keys, column.items], fields=list(entries))


def _leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    if pt.is_map(kind):
        yield from _leaf_types(kind.key_type)
        yield from _leaf_types(kind.item_type)
    elif kind.num_fields:
        for place in range(kind.num_fields):
            yield from _leaf_types(kind.field(place).type)
    else:
        yield kind
