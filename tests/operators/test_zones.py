# SPDX-License-Identifier: Apache-2.0
"""Functions over Arrow see instants in the session's time zone, whatever they are nested in; no instant changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.functions import MapInArrow
from penstock.operators.zones import batches_in, schema_in

ZONE = "America/Los_Angeles"
INSTANT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("t", INSTANT, nullable=False),
        pa.field("plain", pa.timestamp("us")),
        pa.field("list", pa.list_(INSTANT)),
        pa.field("map", pa.map_(pa.string(), pa.struct([pa.field("t", INSTANT)]))),
        pa.field("n", pa.int64()),
    ]
)
MOMENT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"t": MOMENT, "plain": datetime(2026, 1, 2), "list": [MOMENT, None], "map": [("a", {"t": MOMENT})], "n": 1},  # noqa: DTZ001
        {"t": MOMENT, "plain": None, "list": None, "map": [], "n": None},
    ],
    SCHEMA,
)


def test_all_instants_have_the_zone_and_stay_what_they_are() -> None:
    """Those inside lists, maps and structs too; times without a zone and all else are the very same memory."""
    (shown,) = batches_in(iter([ROWS]), ZONE)
    assert shown.schema == schema_in(SCHEMA, ZONE)
    assert str(shown.schema.field("map").type) == f"map<string, struct<t: timestamp[us, tz={ZONE}]>>"
    assert not shown.schema.field("t").nullable
    assert shown.column("t").cast(INSTANT).equals(ROWS.column("t"))
    assert shown.column("list").buffers()[3].address == ROWS.column("list").buffers()[3].address
    assert next(batches_in(iter([ROWS]), "UTC")) is ROWS


def test_a_function_gets_the_sessions_hour_and_may_give_its_rows_back() -> None:
    """Rows that it gives back have the declared type again."""

    def hours(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"t": batch["t"], "hour": pc.hour(batch["t"]).cast(pa.int32())})

    declared = pa.schema([("t", INSTANT), ("hour", pa.int32())])
    (found,) = MapInArrow(hours, declared, ZONE).apply(iter([ROWS]))
    assert found.schema == declared
    assert found.to_pylist() == [{"t": MOMENT, "hour": 19}, {"t": MOMENT, "hour": 19}]
