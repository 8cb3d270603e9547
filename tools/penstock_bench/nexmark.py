# SPDX-License-Identifier: Apache-2.0
"""Nexmark's queries over generated events, and the comparison of their rows with DuckDB's answer over all of them.

The queries and their answers are an example (`examples/nexmark`); here is what they run on and how rows are compared:
times as microseconds, windows by their end, floats to nine digits, and of rows that change the newest of each key.
"""

from __future__ import annotations

import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark import cloudpickle

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.stream.partitioned_source import PartitionedSource
from penstock_bench.nexmark_events import DISORDER, SCHEMAS, NexmarkRows, block, blocks_of

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "nexmark"
DELAY = f"{2 * DISORDER} seconds"
_DIGITS = 9

Row = tuple[Any, ...]


def example(name: str) -> ModuleType:
    """A module of the example, which is no package: its classes travel with a plan, as Spark's workers lack it."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    found = import_module(name)
    cloudpickle.register_pickle_by_value(found)
    return found


def streams(seed: int, blocks: int, session: Any = None, tasks: int = 1) -> dict[str, Stream]:
    """The three streams of a query's arguments, with their watermarks."""
    made = {}
    for kind in SCHEMAS:
        source = PartitionedSource(NexmarkRows(kind, seed, blocks, tasks))
        step = SourceStep(kind, source.schema, source, limit=tasks, partitions=tasks, streaming=True)
        made[kind] = Stream((step,), session).withWatermark("ts", DELAY)
    return made


def tables(seed: int, events: int) -> dict[str, pa.Table]:
    """All events, as the streams give them."""
    return {
        kind: pa.Table.from_batches([block(kind, seed, number) for number in range(blocks_of(events))], schema)
        for kind, schema in SCHEMAS.items()
    }


def answer(query: str, events: dict[str, pa.Table]) -> pa.Table:
    """DuckDB's answer."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        database.execute("SET TimeZone = 'UTC'")
        for name, table in events.items():
            database.register(name, table)
        database.execute(example("answers").SETUP)
        return database.sql(query).to_arrow_table()


def difference(found: pa.Table, expected: pa.Table, keys: list[str]) -> str:
    """The first thing that is not equal, in words; empty where all is."""
    if sorted(found.schema.names) != sorted(expected.schema.names):
        return f"columns {found.schema.names} are not {expected.schema.names}"
    names = expected.schema.names
    rows = _rows(found, names)
    if keys:
        places = [names.index(key) for key in keys]
        rows = list({tuple(row[place] for place in places): row for row in rows}.values())
    ours, theirs = Counter(rows), Counter(_rows(expected, names))
    missing, extra = theirs - ours, ours - theirs
    if not missing and not extra:
        return ""
    first = next(iter(missing), None), next(iter(extra), None)
    return (
        f"{missing.total()} of {theirs.total()} rows are missing, such as {first[0]}, and {extra.total()} are too "
        f"many, such as {first[1]}"
    )


def _rows(table: pa.Table, names: list[str]) -> list[Row]:
    columns = [_plain(table.column(name)) for name in names]
    return list(zip(*columns, strict=True))


def _plain(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pt.is_struct(kind):
        column = pa.chunked_array([chunk.field("end") for chunk in column.chunks], kind.field("end").type)
        kind = column.type
    if pt.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    if pt.is_floating(kind):
        return [None if value is None else float(f"{value:.{_DIGITS}g}") for value in values]
    return values
