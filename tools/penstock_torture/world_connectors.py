# SPDX-License-Identifier: Apache-2.0
"""The connectors of the failing world: tables as sources and sinks, a data source of PySpark's, keyed results.

Each sink's rows are read back by its own library. `connected_faults` looks at the marks of its commits besides: those
of a query only grow, so no checkpoint was committed twice. The libraries go around the file systems that fail: a log
or a catalog is as durable as it says. The files that versions name are written through them, and lose power. Kafka's
broker is a mock in this process, which outlives the query's days.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.api.streaming.lakes import delta_sink, delta_source, iceberg_sink
from penstock.api.streaming.options import Options
from penstock.machine.locations import here
from penstock.spark.data_source_reader import DataSourceStream
from penstock.spark.data_source_writer import data_source_sink
from penstock.spark.data_sources import made, made_to_write
from penstock.stream.folder_sink import FolderSink
from penstock.stream.kafka_offsets import EARLIEST, KafkaStart
from penstock.stream.kafka_sink import KafkaSink
from penstock.stream.kafka_source import KafkaSource
from penstock.stream.sinks import StreamSink
from penstock_torture.mock_kafka import cluster_at, marked, put
from penstock_torture.world_sources import Ledger, ledger_rows, numbers

SOURCES = ("delta", "numbers", "kafka")
SINKS = ("delta", "iceberg", "ledger", "keyed", "kafka")
BATCHED = ("merged", "batches")
_TOPICS = ("0", "1", "out", "elsewhere")
_BATCH_ROWS = 40
_EPOCH = "epoch"
MESSAGE = pa.schema([("value", pa.string())])


def connected_source(kind: str, path: int, folder: Path, rows: int) -> Any:
    """The source of this number; a table has its rows from its first version on."""
    if kind == "numbers":
        return DataSourceStream(made(numbers(path), {"end": str(rows)}, None), _BATCH_ROWS)
    if kind == "kafka":
        cluster = cluster_at(folder.parent.parent, _TOPICS)
        return KafkaSource(cluster, (folder.name,), start=KafkaStart(EARLIEST))
    options = Options("readStream")
    if rows % 2:
        options.set("startingVersion", 0)
    return delta_source(options, str(folder))


def write_numbers(folder: Path, begin: int, end: int) -> None:
    """One more version of a source's table."""
    import deltalake

    values = pa.table({"value": pa.array(range(begin, end), pa.int64())})
    deltalake.write_deltalake(str(folder), values, mode="append")


def write_messages(folder: Path, begin: int, end: int) -> None:
    """So many messages more for a source."""
    put(cluster_at(folder.parent.parent, _TOPICS), folder.name, range(begin, end))


def as_messages() -> Any:
    """A function that gives rows as messages; they have no other columns."""

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [column.cast(pa.string()) for column in (batch["path"], batch["value"])]
            yield pa.RecordBatch.from_arrays([pc.binary_join_element_wise(*texts, ",")], schema=MESSAGE)

    return give


def connected_sink(kind: str, out: Path, schema: pa.Schema, uid: str) -> StreamSink:
    """The sink at `out`."""
    if kind == "delta":
        return delta_sink(Options("writeStream"), str(out), schema, uid)
    if kind == "merged":
        return delta_sink(Options("writeStream"), str(out), schema, uid, groups=("path", "key"))
    if kind == "ledger":
        return data_source_sink(made_to_write(Ledger, {"path": str(out)}, schema), uid, "UTC")
    if kind == "kafka":
        return KafkaSink(cluster_at(out.parent, _TOPICS), uid, out.name, includes_transaction=True)
    if kind == "keyed":
        return FolderSink(here(), str(out), schema, uid, keys=("path", "key"), epoch_column=_EPOCH)
    options = Options("writeStream")
    options.set("catalog", "here")
    for name, value in _catalog_at(out.parent).items():
        options.set(f"catalog.{name}", value)
    with _catalog(out.parent) as catalog:
        catalog.create_namespace_if_not_exists("db")
        catalog.create_table_if_not_exists(f"db.{out.name}", schema, location=f"file://{out}")
    return iceberg_sink(options, f"db.{out.name}", schema, uid)


def _catalog_at(root: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}


@contextmanager
def _catalog(root: Path) -> Iterator[Any]:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("here", **_catalog_at(root))
    try:
        yield catalog
    finally:
        catalog.close()


def connected_faults(kind: str, out: Path, wanted: int, *, whole: bool) -> list[str]:
    """The faults in what a sink shows; `wanted` rows there must be in the end."""
    if kind == "delta":
        table, marks = _delta(out)
    elif kind == "iceberg":
        table, marks = _iceberg(out)
    elif kind == "kafka":
        pairs = [value.decode().split(",") for value in marked(cluster_at(out.parent, _TOPICS), out.name)]
        table, marks = pa.Table.from_pylist([{"path": path, "value": value} for path, value in pairs]), []
    else:
        table, marks = pa.Table.from_pylist(ledger_rows(out)) if out.exists() else pa.table({}), []
    found = [f"doubled: a commit is there twice or out of order: {mark}" for mark in marks]
    counts = table.group_by(["path", "value"]).aggregate([([], "count_all")])["count_all"] if len(table) else []
    if doubled := sum(count.as_py() > 1 for count in counts):
        found.append(f"doubled: {doubled} of {wanted} rows")
    if whole and len(counts) != wanted:
        found.append(f"lost: {wanted - len(counts)} of {wanted} rows")
    return found


def merged_faults(out: Path, sources: int, rows: int, keys: int, *, whole: bool) -> list[str]:
    """The faults of counts by key in a table: each is there once in all versions, none falls, the last are whole."""
    import deltalake

    newest = deltalake.DeltaTable(str(out)).version() if deltalake.DeltaTable.is_deltatable(str(out)) else -1
    found = [f"doubled: a commit is there twice or out of order: {mark}" for mark in _standing(_marks(out, newest))]
    before: dict[tuple[int, int], int] = {}
    for version in range(newest + 1):
        table = deltalake.DeltaTable(str(out), version=version).to_pyarrow_table()
        counts = {(row["path"], row["key"]): row["n"] for row in table.to_pylist()}
        if len(counts) < len(table):
            found.append(f"doubled: version {version} has {len(table)} rows of {len(counts)} keys")
        if any(counts.get(key, 0) < count for key, count in before.items()):
            found.append(f"lost: counts of version {version} are less than those before")
        if version > 0 and counts == before:
            found.append(f"doubled: version {version} is as the one before")
        before = counts
    wanted = Counter((path, number % keys) for path in range(sources) for number in range(rows))
    if any(count > wanted[key] for key, count in before.items()):
        found.append("doubled: a count is greater than the rows of its key")
    if whole and before != wanted:
        found.append(f"lost: {sum(wanted.values()) - sum(before.values())} rows are not counted")
    return found


def _marks(out: Path, newest: int) -> list[tuple[str, int]]:
    """The transactions of a Delta table's versions."""
    marks = []
    for version in range(newest + 1):
        log = (out / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        marks += [(each["txn"]["appId"], each["txn"]["version"]) for each in map(json.loads, log) if "txn" in each]
    return marks


def _delta(out: Path) -> tuple[pa.Table, list[str]]:
    """The newest version's rows, of which each version before has some, and marks that do not grow."""
    import deltalake

    if not deltalake.DeltaTable.is_deltatable(str(out)):
        return pa.table({}), []
    table = deltalake.DeltaTable(str(out))
    rows = 0
    for version in range(table.version() + 1):
        at = len(deltalake.DeltaTable(str(out), version=version).to_pyarrow_table())
        if at < rows or (version > 0 and at == rows):
            return table.to_pyarrow_table(), [f"version {version} has {at} rows, the one before {rows}"]
        rows = at
    return table.to_pyarrow_table(), _standing(_marks(out, table.version()))


def _iceberg(out: Path) -> tuple[pa.Table, list[str]]:
    with _catalog(out.parent) as catalog:
        if not catalog.table_exists(f"db.{out.name}"):
            return pa.table({}), []
        table = catalog.load_table(f"db.{out.name}")
        own = [snapshot.summary.additional_properties for snapshot in table.snapshots()]
        marks = [(each["penstock.query"], int(each["penstock.version"])) for each in own]
        return table.scan().to_arrow(), _standing(marks)


def _standing(marks: list[tuple[str, int]]) -> list[str]:
    """The marks that are not greater than the one before of their query."""
    newest: dict[str, int] = {}
    found = []
    for query, version in marks:
        if version <= newest.get(query, -1):
            found.append(f"{query} {version}")
        newest[query] = version
    return found


def keyed_faults(folders: list[Path], sources: int, rows: int, keys: int, *, whole: bool) -> list[str]:
    """The faults of counts by key: those of one key grow from epoch to epoch, and the last one is whole."""
    tables = [pq.read_table(file, partitioning=None) for folder in folders for file in folder.rglob("part-*")]
    by_key: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row in pa.concat_tables(tables).to_pylist() if tables else ():
        by_key[row["path"], row["key"]].append((row[_EPOCH], row["n"]))
    found = []
    for key, counts in by_key.items():
        counts.sort()
        if len({epoch for epoch, _ in counts}) < len(counts):
            found.append(f"doubled: key {key} is there twice in one epoch: {counts}")
        elif [count for _, count in counts] != sorted({count for _, count in counts}):
            found.append(f"lost: the counts of key {key} do not grow: {counts}")
    wanted = Counter({(path, number % keys): 0 for path in range(sources) for number in range(min(rows, keys))})
    wanted.update((path, number % keys) for path in range(sources) for number in range(rows))
    for key, count in wanted.items():
        last = by_key[key][-1][1] if by_key.get(key) else 0
        if last > count:
            found.append(f"doubled: key {key} has {last} rows of {count}")
        elif whole and last < count:
            found.append(f"lost: key {key} has {last} rows of {count}")
    return found
