# SPDX-License-Identifier: Apache-2.0
"""Days and instants of the calendar before 1582, by what a file's footer says of them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.api.parquet import parquet_source
from penstock.errors import SchemaError
from penstock.operators.old_calendar import Calendars, OldFile, ZoneShifts
from penstock.operators.parquet_read import FileReading, ParquetRows, open_parquet

BERLIN = Calendars({"Europe/Berlin": ZoneShifts((-62135773200, -12219296400, -2422054408), (173192, 392, 0))})
"""Three of the switches that Spark has for the zone."""
OLD = {"org.apache.spark.version": "2.4.8"}
ZONE = {"org.apache.spark.timeZone": "Europe/Berlin"}
DAYS = [-719893, -719164, -141428, -141427, 0, None]
"""Dates -0001-01-01 and 0001-01-01, the last of the old calendar, the first of the new one."""
NEW_DAYS = [-719891, -719162, -141438, -141427, 0, None]

FOOTERS = [
    ({}, False, False),
    ({"org.apache.spark.version": "4.1.0"}, False, False),
    ({"org.apache.spark.version": "2.4.8"}, True, True),
    ({"org.apache.spark.version": "3.0.2"}, False, True),
    ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}, True, False),
    ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyINT96": ""}, False, True),
]


def written(path: Path, columns: dict[str, pa.Array], footer: dict[str, str], **options: Any) -> str:
    """A file with these pairs in its footer."""
    table = pa.table(columns).replace_schema_metadata(footer)
    pq.write_table(table, path, **options)
    return str(path)


@pytest.mark.parametrize(("footer", "times", "int96"), FOOTERS)
def test_the_footer_says_what_is_old(footer: dict[str, str], times: bool, int96: bool) -> None:
    """Spark 2 wrote the old calendar, 3.0 for INT96 too; later ones say it. Of others' files the session decides."""
    found = OldFile.of({key.encode(): value.encode() for key, value in footer.items()}, Calendars())
    assert (found is not None and found.times, found is not None and found.int96) == (times, int96)
    assert OldFile.of(None, Calendars(times="LEGACY")) == OldFile(True, False, "")


def test_old_days_are_the_dates_that_were_written(tmp_path: Path) -> None:
    """At any depth, in slices and between nulls; filters see the dates, and no statistics of the old numbers."""
    days = pa.array(DAYS, pa.int32()).cast(pa.date32())
    nested = pa.array([[{"d": day}] for day in days[2:].to_pylist()], pa.list_(pa.struct([("d", pa.date32())])))
    path = written(tmp_path / "x", {"d": days, "n": pa.array(range(6))}, OLD)
    found = pa.Table.from_batches(parquet_source(path, None, None).read(0, 1))
    assert found["d"].cast(pa.int32()).to_pylist() == NEW_DAYS
    last = dt.date(1582, 10, 4)
    for where in (pc.field("d") == last, (pc.field("d") <= last) & (pc.field("n") > 1)):
        (batch,) = parquet_source(path, ["d"], where).read(0, 1)
        assert batch.to_pylist() == [{"d": last}]
    path = written(tmp_path / "y", {"l": nested}, OLD)
    found = pa.Table.from_batches(parquet_source(path, None, None).read(0, 1))
    assert found["l"].to_pylist()[:2] == [[{"d": last}], [{"d": dt.date(1582, 10, 15)}]]


@pytest.mark.parametrize("options", [{"coerce_timestamps": "ms"}, {}, {"use_deprecated_int96_timestamps": True}])
def test_old_instants_are_the_times_that_a_zone_had(tmp_path: Path, options: dict[str, Any]) -> None:
    """By the shifts of the file's zone, in each unit; days of the session's own zone need none."""
    seconds = [-62135773201, -62135773200, -12219296400, -2422054409, -2422054408, 0, None]
    shifted = [-62135773201 + 2 * 86400 + 392, -62135600008, -12219296008, -2422054017, -2422054408, 0, None]
    column = pa.array([None if each is None else each * 10**6 for each in seconds], pa.timestamp("us", "UTC"))
    path = written(tmp_path / "x", {"t": column}, {**OLD, **ZONE}, **options)
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    with open_parquet(path, None) as file:
        (batch,) = ParquetRows(file, schema, path, FileReading(calendars=BERLIN)).batches(100, [0])
    assert batch.column(0).cast(pa.int64()).to_pylist() == [x if x is None else x * 10**6 for x in shifted]
    with pytest.raises(SchemaError, match="calendar before 1582 in the time zone 'Europe/Berlin'"):
        list(parquet_source(path, None, None).read(0, 1))
