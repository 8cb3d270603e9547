# SPDX-License-Identifier: Apache-2.0
"""Delta and Iceberg tables of queries: read back version by version by their own libraries, whatever was killed."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api.delta import write_delta
from penstock.api.lineage import SourceStep
from penstock.api.readers import readDelta
from penstock.api.stream import Stream
from penstock.api.streaming.lakes import delta_sink, delta_source, iceberg_sink
from penstock.api.streaming.options import Options
from penstock.api.streaming.writer import query_graph
from penstock.checkpoint.coordinator import CheckpointOptions
from penstock.checkpoint.errors import CheckpointError
from penstock.errors import OutsideError, PlanError, ProducerFailedError, SchemaError, TaskCancelledError
from penstock.graph import JobGraph
from penstock.graph.streaming import StreamingOptions
from penstock.record import PartitionerSpec
from penstock.settings import Settings
from penstock.stream.chain import StepContext
from penstock.stream.commit_sink import MESSAGES, CommitSink, message_batch
from penstock.stream.delta_log import added_files, files_in_order
from penstock.stream.delta_merge import merge_rows
from penstock.stream.delta_source import DeltaSource
from penstock.stream.outside import outside
from penstock.stream.rate import SCHEMA, RateSource
from penstock.stream.sinks import SinkOperator
from penstock.stream.steps import step_of
from penstock.stream.table_files import TableFile
from penstock.testing import wait_until
from penstock.testing.local_runner import run_local
from penstock.testing.sources import fromBatches
from penstock_torture.local_query import LocalQuery, linear_graph, location
from penstock_torture.tables.rows import HERE, writing_here
from penstock_torture.world_shapes import KEYS, numbered, passed
from penstock_torture.world_shapes import SCHEMA as NUMBERED
from underway import listed

ROWS = 3000
OF_KILLS = (TaskCancelledError, ProducerFailedError)


def options(**given: str) -> Options:
    """The options of a writer."""
    found = Options("writeStream")
    for name, value in given.items():
        found.set(name.replace("__", "."), value)
    return found


@pytest.fixture
def lake(catalog: Any) -> tuple[Any, dict[str, str]]:
    """A catalog with an empty table, and what opens it."""
    catalog.create_table("db.numbers", SCHEMA)
    opens = {"type": "sql", "uri": catalog.properties["uri"], "warehouse": catalog.properties["warehouse"]}
    return catalog, {f"catalog__{name}": value for name, value in opens.items()}


def written(folder: Path, make: Callable[[], CommitSink], interval: float = 0.05) -> int:
    """Write numbers by three tasks with kills, in two runs; gives the number of checkpoints that were complete."""
    chance, completed = random.Random(3), 0
    timing = CheckpointOptions(interval=interval, tolerable_failures=99)
    for until in (ROWS // 2, None):
        sink = make()
        source = RateSource(3000, partitions=1, num_rows=ROWS)
        stages = [
            (1, (), SCHEMA, None),
            (3, (sink.writing,), MESSAGES, PartitionerSpec("rebalance")),
            (1, (SinkOperator(sink),), MESSAGES, PartitionerSpec("to_one")),
        ]
        with LocalQuery(linear_graph(source, stages), location(folder), timing) as query:
            query.start()
            for _ in range(3):
                query.run(time.monotonic() + chance.uniform(0.05, 0.2))
                query.kill(chance.choice([(0, 0), (1, 2), (2, 0)]))
            if until is not None:
                query.stop()
            query.run_through()
            assert not [error for error in query.failures if not isinstance(error, OF_KILLS)]
            completed += len(query.completed)
    return completed


def test_each_row_is_in_one_version_of_a_delta_table(delta: Any, tmp_path: Path) -> None:
    """Versions grow by whole checkpoints, none is made twice, and the files are read by the library."""
    uri = str(tmp_path / "table")
    completed = written(tmp_path, lambda: delta_sink(options(), uri, SCHEMA, "q"))
    table = delta.DeltaTable(uri)
    found = [Counter(version_of(delta, uri, number)) for number in range(table.version() + 1)]
    assert not found[0]
    assert all(earlier < later for earlier, later in itertools.pairwise(found))
    assert found[-1] == Counter(range(ROWS))
    assert 2 <= table.version() <= completed
    with pytest.raises(CheckpointError, match="the checkpointLocation is empty, and Delta table"):
        delta_sink(options(), uri, SCHEMA, "q").check_anew()


def version_of(delta: Any, uri: str, number: int) -> list[int]:
    """The numbers of one version."""
    values: list[int] = delta.DeltaTable(uri, version=number).to_pyarrow_table()["value"].to_pylist()
    return values


def texts_of(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function that gives numbers as texts in a layout."""
    schema = pa.schema([("text", kind)])

    def give(batches: Any) -> Any:
        for batch in batches:
            column = pa.array([str(value) for value in batch["value"].to_pylist()]).cast(kind)
            yield pa.RecordBatch.from_arrays([column], schema=schema)

    return give


def test_jobs_and_queries_append_any_layout_to_a_delta_table(delta: Any, tmp_path: Path) -> None:
    """Texts that functions declare and give as strings, large ones, views and dictionaries are one column."""
    uri, wanted = str(tmp_path / "table"), list(map(str, range(4)))
    kinds = [pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
    with writing_here():
        for kind in kinds:
            rows = fromBatches(pa.table({"value": range(4)}))
            rows = rows.mapInArrow(texts_of(kind), pa.schema([("text", kind)]))
            write_delta(Stream(rows.branches, HERE), uri, "append", ())
    source = RateSource(1000, partitions=1, num_rows=4)
    step = SourceStep("numbers", source.schema, source, partitions=1, streaming=True)
    large = pa.schema([("text", pa.large_string())])
    stream = Stream((step,)).mapInArrow(texts_of(pa.large_string()), large)
    sink = delta_sink(options(), uri, stream.schema, "q")
    place = StreamingOptions("q", "query", location(tmp_path))
    graph = query_graph(stream.branches, sink, Settings(), 8, place, is_kept=True)
    with LocalQuery(graph, location(tmp_path), CheckpointOptions(interval=0.05)) as query:
        query.start()
        query.run_through()
    assert sorted(delta.DeltaTable(uri).to_pyarrow_table()["text"].to_pylist()) == sorted(wanted * 4)
    found = run_local(readDelta(None, uri))
    assert (found.schema.types, sorted(found["text"].to_pylist())) == ([pa.string()], sorted(wanted * 4))


def by_key(uri: str, tasks: int, folder: Path) -> JobGraph:
    """A query of numbers in their order into a table that has the last number of each key."""
    source = RateSource(3000, partitions=1, num_rows=ROWS)
    step = SourceStep("numbers", source.schema, source, partitions=1, streaming=True)
    rows = Stream((step,)).mapInArrow(numbered(0), NUMBERED).keyBy("key", numPartitions=tasks)
    rows = rows.mapInArrow(passed(), NUMBERED)
    sink = delta_sink(options(keyColumns="key"), uri, NUMBERED, "q", ("path",))
    place = StreamingOptions("q", "query", location(folder))
    return query_graph(rows.branches, sink, Settings(), 8, place, is_kept=True)


def test_a_delta_table_by_key_has_the_last_row_of_each_key_in_every_version(delta: Any, tmp_path: Path) -> None:
    """As of one moment, after kills too, and with another number of tasks."""
    uri = str(tmp_path / "table")
    chance = random.Random(5)
    timing = CheckpointOptions(interval=0.1, tolerable_failures=99)
    for tasks, is_last in ((3, False), (2, True)):
        with LocalQuery(by_key(uri, tasks, tmp_path), location(tmp_path), timing) as query:
            query.start()
            for _ in range(3):
                query.run(time.monotonic() + chance.uniform(0.1, 0.25))
                query.kill(chance.choice([(0, 0), (1, 1), (2, 0)]))
            if not is_last:
                wait_until(lambda: delta.DeltaTable(uri).version() > 1 or query.run(time.monotonic() + 0.05), "rows")
                query.stop()
            query.run_through()
            assert not [error for error in query.failures if not isinstance(error, OF_KILLS)]
    newest = delta.DeltaTable(uri)
    before = -1
    for version in range(1, newest.version() + 1):
        rows = delta.DeltaTable(uri, version=version).to_pyarrow_table().to_pylist()
        last = max(row["value"] for row in rows)
        assert last > before, "a version that has nothing new"
        first = max(0, last - KEYS + 1)
        assert {row["key"]: row["value"] for row in rows} == {n % KEYS: n for n in range(first, last + 1)}
        assert len(rows) == min(KEYS, last + 1)
        before = last
    assert before == ROWS - 1
    assert newest.metadata().partition_columns == ["path"]
    with pytest.raises(CheckpointError, match="by key has commits of this query"):
        delta_sink(options(keyColumns="key"), uri, NUMBERED, "q").check_anew()


KEYED = pa.schema([("a.b", pa.string()), ("day", pa.date32()), pa.field("n", pa.int64(), nullable=False)])


def committed(sink: CommitSink, rows: list[tuple[Any, ...]], number: int) -> bytes:
    """The state of a checkpoint with these rows, which are committed."""
    writing = step_of(sink.writing)
    writing.open(StepContext(0, 1, 128, "here"), [])
    table = pa.Table.from_pylist([dict(zip(KEYED.names, row, strict=True)) for row in rows], KEYED)
    assert not list(writing.process(table.to_batches()[0]))
    writer = sink.open(0, 1, [])
    for message in writing.end_epoch():
        writer.write(message)
    (_, first), state = writing.snapshot(number)[0], writer.prepare(number)
    first()
    writer.commit(number)
    ((_, second),) = writing.snapshot(number + 1)  # the merged files have gone, and it minds not
    second()
    writing.close()
    return state


def test_keys_of_a_delta_table_may_be_null_and_have_any_name(delta: Any, tmp_path: Path) -> None:
    """The later row counts, of one epoch and of two; a commit that is told of again changes nothing."""
    uri = str(tmp_path / "table")
    day = dt.date(2026, 1, 31)
    sink = delta_sink(options(keyColumns="a.b, day"), uri, KEYED, "q").owned("000001-a")
    first = committed(sink, [("x", day, 1), ("x", day, 2), (None, day, 3), ("x", None, 4)], 1)
    committed(sink, [(None, day, 5), ("y", day, 6), ("", day, 7)], 2)
    committed(sink, [("x", day, 8)], 3)
    sink.open(0, 1, [first])
    table = delta.DeltaTable(uri)
    found = {(row["a.b"], row["day"]): row["n"] for row in table.to_pyarrow_table().to_pylist()}
    assert found == {("x", day): 8, (None, day): 5, ("x", None): 4, ("y", day): 6, ("", day): 7}
    assert table.version() == 3
    assert not listed(tmp_path / "table" / "penstock-q")
    with pytest.raises(PlanError, match=r"has rows to commit to Delta table .* by a\.b, day"):
        delta_sink(options(), uri, KEYED, "q").check([first])
    with pytest.raises(PlanError, match=r"keyColumns are a\.b, and the groups of outputMode\('complete'\) are day"):
        delta_sink(options(keyColumns="a.b"), uri, KEYED, "q", (), ("day",))
    with pytest.raises(SchemaError, match="'f' is a double"):
        delta_sink(options(keyColumns="f"), str(tmp_path / "other"), pa.schema([("f", pa.float64())]), "q")


def test_two_drivers_make_one_version_of_a_merge(delta: Any, tmp_path: Path) -> None:
    """The slower one is refused by the library, and the attempt after it finds the commit made."""
    uri = str(tmp_path / "table")
    sink = delta_sink(options(keyColumns="a.b"), uri, KEYED, "q")
    committed(sink, [("x", None, 1)], 1)
    slow = delta.DeltaTable(uri)
    state = committed(sink, [("x", None, 2)], 2)
    rows = pa.table({"a.b": ["x"], "day": pa.array([None], pa.date32()), "n": [2]})
    mark = delta.Transaction("q", 2, 0)  # as that of the commit that was quicker
    with pytest.raises(delta.exceptions.CommitFailedError):
        merge_rows(slow, rows, ["a.b"], delta.CommitProperties(app_transactions=[mark]))
    sink.open(0, 1, [state])
    assert delta.DeltaTable(uri).version() == 2


def test_files_of_a_partitioned_delta_table_have_one_value_each(delta: Any, tmp_path: Path) -> None:
    """Texts with any signs, and nulls; a table that is partitioned keeps its columns, others are refused."""
    uri = str(tmp_path / "table")
    sink = delta_sink(options(), uri, KEYED, "q", ("a.b", "day"))
    day = dt.date(2026, 1, 31)
    rows = [("x", day, 1), ("50%=/:", day, 2), (None, None, 3), ("x", day, 4), ("ä ", None, 5)]
    committed(sink, rows, 1)
    table = delta.DeltaTable(uri)
    found = [tuple(row[name] for name in KEYED.names) for row in table.to_pyarrow_table().to_pylist()]
    assert sorted(found, key=lambda row: row[2]) == rows
    assert len(table.file_uris()) == 4
    assert sorted(table.to_pyarrow_table(filters=[("a.b", "=", "x")])["n"].to_pylist()) == [1, 4]
    committed(delta_sink(options(), uri, KEYED, "p"), [("x", day, 6)], 1)
    assert len(delta.DeltaTable(uri).to_pyarrow_table()) == 6
    with pytest.raises(PlanError, match=r"is partitioned by a\.b, day, and partitionBy says day"):
        delta_sink(options(), uri, KEYED, "q", ("day",))


def test_a_commit_of_delta_is_made_once(delta: Any, tmp_path: Path) -> None:
    """By whoever is told of it again; another driver's number is a greater one; another table is refused."""
    uri = str(tmp_path / "table")
    sink = delta_sink(options(), uri, SCHEMA, "q").owned("000001-a")
    files = tmp_path / "table" / "penstock-q"
    files.mkdir()
    for name in ("part-0", "part-1"):
        pq.write_table(pa.table({"timestamp": [None], "value": [3]}, SCHEMA), files / name)
    size = (files / "part-0").stat().st_size
    writer = sink.open(0, 1, [])
    writer.write(message_batch(TableFile("penstock-q/part-0", size, 1).packed()))
    state = writer.prepare(5)
    writer.commit(5)
    for owner in ("000001-a", "000002-b"):
        sink.owned(owner).open(0, 1, [state]).commit(5)
    assert delta.DeltaTable(uri).version() == 1
    later = sink.owned("000002-b").open(0, 1, [state])
    later.write(message_batch(TableFile("penstock-q/part-1", size, 1).packed()))
    later.prepare(3)
    later.commit(3)
    assert delta.DeltaTable(uri).version() == 2
    with pytest.raises(PlanError, match="has rows to commit to Delta table"):
        delta_sink(options(), str(tmp_path / "other"), SCHEMA, "q").check([state])
    assert delta_sink(options(), str(tmp_path / "other"), SCHEMA, "q").is_elsewhere([state])
    whole = delta_sink(options(), str(tmp_path / "other"), SCHEMA, "q", groups=("value",))
    assert not whole.is_elsewhere([state])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(PlanError, match="is not empty and no Delta table"):
        delta_sink(options(), str(tmp_path / "taken"), SCHEMA, "q")
    with pytest.raises(SchemaError, match="bring them to the"):
        delta_sink(options(), uri, pa.schema([("value", pa.int64())]), "q")


TWO = pa.record_batch({"timestamp": [None, None], "value": [1, 2]}, SCHEMA)


def prepared(sink: CommitSink, rows: pa.RecordBatch = TWO) -> bytes:
    """The state of a checkpoint that has rows to commit, whose file is written."""
    writing = step_of(sink.writing)
    writing.open(StepContext(0, 1, 128, "here"), [])
    assert not list(writing.process(rows))
    (message,) = writing.end_epoch()
    writer = sink.open(0, 1, [])
    writer.write(message)
    writing.close()
    return writer.prepare(1)


def test_files_that_somebody_removed_are_not_committed_to_a_delta_table(delta: Any, tmp_path: Path) -> None:
    """By a vacuum of all files, say: the start is refused, a commit is tried again, and the table can be read."""
    uri = str(tmp_path / "table")
    sink = delta_sink(options(), uri, SCHEMA, "q")
    state = prepared(sink)
    sink.check([state])
    (gone,) = delta.DeltaTable(uri).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    with pytest.raises(CheckpointError, match=f"{gone} is gone, and the checkpoint has its rows"):
        sink.check([state])
    with pytest.raises(FileNotFoundError, match="gone"):
        sink.open(0, 1, [state])
    assert not delta.DeltaTable(uri).file_uris()
    sink.open(0, 1, [prepared(sink)])
    assert delta.DeltaTable(uri).to_pyarrow_table()["value"].to_pylist() == [1, 2]
    for file in listed(tmp_path / "table" / "penstock-q"):
        file.unlink()
    sink.check([state])  # what was committed is the table's


def test_a_query_does_not_commit_what_a_delta_table_forbids(delta: Any, tmp_path: Path) -> None:
    """Numbers without a sign; rows that no task held to a rule, also a later one. The library holds a merge to it."""
    rows = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    uri = str(tmp_path / "t")
    with pytest.raises(SchemaError, match="column 'v' is uint8, which Delta Lake does not have"):
        delta_sink(options(), uri, pa.schema([("v", pa.uint8())]), "q")
    sink = delta_sink(options(), uri, rows, "q")
    row = pa.record_batch([[1], [-5]], rows)
    state = prepared(sink, row)
    delta.DeltaTable(uri).alter.add_constraint({"positive": "v > 0"})
    with pytest.raises(PlanError, match="has rules for its values"):
        sink.open(0, 1, [state])
    with pytest.raises(PlanError, match=r"has rules for its values \(delta.constraints.positive\)"):
        delta_sink(options(), uri, rows, "q")
    keyed = delta_sink(options(keyColumns="k"), uri, rows, "other")
    state = prepared(keyed, row)
    with pytest.raises(OutsideError, match="failed validation"):
        keyed.open(0, 1, [state])
    assert not len(delta.DeltaTable(uri).to_pyarrow_table())


def test_files_below_a_mount_that_dropped_are_in_no_checkpoint(delta: Any, tmp_path: Path) -> None:
    """They can be written and waited for there; the table's log is not beside them, so the checkpoint is declined."""
    table = tmp_path / "table"
    writing = step_of(delta_sink(options(), str(table), SCHEMA, "q").writing)
    table.rename(tmp_path / "away")
    writing.open(StepContext(0, 1, 128, "here"), [])
    list(writing.process(pa.record_batch({"timestamp": [None], "value": [1]}, SCHEMA)))
    list(writing.end_epoch())
    ((_, store),) = writing.snapshot(1)
    with pytest.raises(FileNotFoundError, match="the table is away"):
        store()
    writing.close()


def test_files_that_somebody_removed_are_not_committed_to_iceberg(
    lake: tuple[Any, dict[str, str]], tmp_path: Path
) -> None:
    """As for Delta; the library itself looks at each file."""
    catalog, given = lake
    sink = iceberg_sink(options(catalog="here", **given), "db.numbers", SCHEMA, "q")
    state = prepared(sink)
    sink.check([state])
    (file,) = listed(tmp_path / "lake", "**/part-*")
    aside = file.rename(tmp_path / "aside")
    with pytest.raises(CheckpointError, match="is gone, and the checkpoint has its rows to commit to Iceberg table"):
        sink.check([state])
    with pytest.raises(FileNotFoundError):
        sink.open(0, 1, [state])
    assert not catalog.load_table("db.numbers").snapshots()
    aside.rename(file)
    for _ in range(2):
        sink.open(0, 1, [state])
    assert len(catalog.load_table("db.numbers").snapshots()) == 1


def test_a_catalog_that_does_not_answer_is_asked_again(lake: tuple[Any, dict[str, str]]) -> None:
    """Also where nobody knows whether it took the commit: the next attempt looks."""
    library = pytest.importorskip("pyiceberg.exceptions")
    names = ("ServiceUnavailableError", "ServerError", "CommitStateUnknownException", "CommitFailedException")
    for name in (*names, "TooManyRequestsError", "AuthorizationExpiredError", "WaitingForLockException"):
        with pytest.raises(OutsideError, match=name), outside("a commit"):
            raise getattr(library, name)("503")
    with pytest.raises(library.NoSuchTableError), outside("a commit"):
        lake[0].load_table("db.none")


def test_each_row_is_in_one_snapshot_of_an_iceberg_table(lake: tuple[Any, dict[str, str]], tmp_path: Path) -> None:
    """As for Delta."""
    catalog, given = lake

    def make() -> CommitSink:
        return iceberg_sink(options(catalog="here", **given), "db.numbers", SCHEMA, "q")

    completed = written(tmp_path, make, interval=0.25)
    table = catalog.load_table("db.numbers")
    scans = [table.scan(snapshot_id=snapshot.snapshot_id) for snapshot in table.snapshots()]
    found = [Counter(scan.to_arrow()["value"].to_pylist()) for scan in scans]
    assert all(earlier < later for earlier, later in itertools.pairwise(found))
    assert found[-1] == Counter(range(ROWS))
    assert 2 <= len(found) <= completed
    with pytest.raises(CheckpointError, match="the checkpointLocation is empty, and Iceberg table here"):
        make().check_anew()
    with table.update_schema() as change:
        change.rename_column("value", "number")  # the files have the table's numbers of columns
    assert Counter(table.scan().to_arrow()["number"].to_pylist()) == Counter(range(ROWS))


def numbers(delta: Any, uri: str, values: range) -> None:
    """One more version, with these."""
    delta.write_deltalake(uri, pa.table({"n": pa.array(values, pa.int64())}), mode="append")


def read(uri: str, state: bytes | None, rows: int, **given: str) -> tuple[list[int], bytes]:
    """So many numbers behind a position, and the position after them."""
    reader = delta_source(options(**given), uri).open(0, 1, [] if state is None else [state])
    found: list[int] = []

    def enough() -> bool:
        batch = reader.poll(min(7, rows - len(found)))
        found.extend([] if batch is None else batch["n"].to_pylist())
        return len(found) >= rows

    try:
        wait_until(enough, "the rows have come")
        return found, reader.snapshot()
    finally:
        reader.close()


def test_versions_of_a_delta_table_are_read_once(delta: Any, tmp_path: Path) -> None:
    """All rows first, then those of each version, from the middle of a file on; compactions give nothing."""
    uri = str(tmp_path / "table")
    for first in (0, 50):
        numbers(delta, uri, range(first, first + 50))
    found, state = read(uri, None, 73)
    numbers(delta, uri, range(100, 130))
    delta.DeltaTable(uri).optimize.compact()
    numbers(delta, uri, range(130, 140))
    more, state = read(uri, state, 67)
    assert sorted(found + more) == list(range(140))
    numbers(delta, uri, range(140, 145))
    assert read(uri, state, 5)[0] == list(range(140, 145))
    assert sorted(read(uri, None, 45, startingVersion="2")[0]) == list(range(100, 145))
    delta.DeltaTable(uri).delete("n < 10")
    numbers(delta, uri, range(145, 150))
    with pytest.raises(PlanError, match="version 6 deletes or changes rows"):
        read(uri, None, 11, startingVersion="5")
    assert read(uri, None, 10, startingVersion="5", skipChangeCommits="true")[0] == list(range(140, 150))
    ended = delta_source(options(startingVersion="5", skipChangeCommits="true"), uri).available_now().open(0, 1, [])
    wait_until(lambda: (ended.poll(99), ended.is_ended)[1], "it has ended")
    ended.close()


def test_first_rows_of_a_delta_table_come_in_the_order_of_its_commits(delta: Any, tmp_path: Path) -> None:
    """Files of one moment by the least time of their rows; an attempt in the middle goes on in the same order."""
    uri = str(tmp_path / "table")
    for first in range(12):
        numbers(delta, uri, range(first, first + 1))
    found, state = read(uri, None, 5)
    assert found + read(uri, state, 7)[0] == list(range(12))
    written: list[tuple[str, int, str | None]] = [("a", 20, "2026-01-03"), ("b", 20, "2026-01-01"), ("c", 10, None)]
    actions = [
        delta.transaction.AddAction(
            f"{name}.parquet", 1, {}, at, True, json.dumps({"minValues": day and {"day": day}})
        )
        for name, at, day in written
    ]
    table = delta.DeltaTable.create(
        str(tmp_path / "other"), delta.Schema.from_arrow(pa.schema([("day", pa.date32())]))
    )
    table.create_write_transaction(actions, "append", table.schema())
    assert files_in_order(delta.DeltaTable(str(tmp_path / "other"))) == ["c.parquet", "b.parquet", "a.parquet"]


def test_versions_of_a_delta_table_that_widen_a_column_go_on(delta: Any, tmp_path: Path) -> None:
    """Files of narrower numbers too, with entries by hand, as no library widens; what does not fit is one error."""
    schema = pa.schema([("n", pa.int64())])
    for kind, refused in (("integer", ""), ("short", ""), ("long", ""), ("string", "column 'n' is string there")):
        fields = [{"name": "n", "type": kind, "nullable": True, "metadata": {}}]
        columns = json.dumps({"type": "struct", "fields": fields})
        actions: list[dict[str, Any]] = [
            {"metaData": {"partitionColumns": [], "configuration": {}, "schemaString": columns}},
            {"add": {"path": "f", "dataChange": True}},
        ]
        with pytest.raises(PlanError, match=refused) if refused else nullcontext():
            assert added_files("t", 2, actions, schema, skips=False) == ["f"]
    uri = str(tmp_path / "table")
    delta.write_deltalake(uri, pa.table({"n": pa.array([1], pa.int32())}))
    wide = replace(delta_source(options(), uri), schema=schema)
    with closing(wide.open(0, 1, [])) as reader:
        assert reader.reads_backlog
        wait_until(lambda: rows_of(reader.poll(9)) == [{"n": 1}], "the row has come")
        wait_until(lambda: reader.poll(9) is None and not reader.reads_backlog, "the first rows are given")


def test_a_query_of_a_delta_table_begins_with_the_version_that_there_was(delta: Any, tmp_path: Path) -> None:
    """Rows that came since are those of later versions, for readers that were told no position too.

    A checkpoint that was taken ahead of all rows has the version.
    """
    uri = str(tmp_path / "table")
    numbers(delta, uri, range(3))
    for start, expected in (({}, [0, 1, 2, 3]), ({"startingVersion": "latest"}, [3])):
        source = delta_source(options(**start), uri)
        begun = source.begun_at(source.first_position())
        with closing(begun.open(0, 1, [])) as reader:
            state = reader.snapshot()
        numbers(delta, uri, range(3, 4))
        for _ in range(2):
            assert rows_read(begun, len(expected)) == expected
        assert rows_read(source, len(expected), [state]) == expected
        delta.DeltaTable(uri).restore(0)


def test_rows_of_one_version_of_a_delta_table_are_one_batch_of_event_time(delta: Any, tmp_path: Path) -> None:
    """The reader says in which version it is, also in the middle of it, and that it is between two."""
    uri = str(tmp_path / "table")
    numbers(delta, uri, range(1))
    latest = delta_source(options(startingVersion="latest"), uri)
    begun = latest.begun_at(latest.first_position())
    numbers(delta, uri, range(1, 3))
    with closing(begun.open(0, 1, [])) as reader:
        assert reader.unit_of("log") is None
        for _ in range(2):
            wait_until(lambda: reader.poll(1) is not None, "a row has come")
            assert reader.unit_of("log") == 1
        wait_until(lambda: reader.poll(1) is None and reader.unit_of("log") is None, "the version is over")


def test_upkeep_of_a_delta_table_goes_on_or_has_one_error(delta: Any, tmp_path: Path) -> None:
    """Properties change nothing. A new column ends a query, and the next one knows it.

    Files that were vacuumed before they were read are named; where the table's folder is away, a file that can't be
    found is the world's error.
    """
    uri = str(tmp_path / "table")
    numbers(delta, uri, range(3))
    old = delta_source(options(startingVersion="0"), uri)
    delta.DeltaTable(uri).alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"})
    numbers(delta, uri, range(3, 5))
    assert rows_read(old, 5) == list(range(5))
    rows = pa.table({"n": pa.array([5], pa.int64()), "m": ["new"]})
    delta.write_deltalake(uri, rows, mode="append", schema_mode="merge")
    with pytest.raises(PlanError, match=r"version 3 has the new column 'm', which this query does not know"):
        rows_read(old, 6)
    assert rows_read(delta_source(options(startingVersion="0"), uri), 6) == list(range(6))
    delta.DeltaTable(uri).optimize.compact()
    delta.DeltaTable(uri).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(PlanError, match=r"of version 0 was taken out of the table .* before this query had read it"):
        rows_read(delta_source(options(startingVersion="0"), uri), 6)
    Path(uri).rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError), old.log.reading("gone.parquet", 0):
        raise FileNotFoundError


def rows_read(source: DeltaSource, rows: int, restored: Sequence[bytes] = ()) -> list[int]:
    """So many numbers, from where a query begins or goes on."""
    with closing(source.open(0, 1, restored)) as reader:
        found: list[int] = []
        wait_until(
            lambda: found.extend([row["n"] for row in rows_of(reader.poll(99))]) or len(found) >= rows,
            "they have come",
        )
    return found


def test_a_delta_table_that_was_made_anew_is_refused(delta: Any, tmp_path: Path) -> None:
    """By its id, wherever its versions are; one that was cut back keeps its id, and is refused by its version."""
    uri = str(tmp_path / "table")
    for first in range(3):
        numbers(delta, uri, range(first, first + 1))
    shutil.copytree(uri, tmp_path / "early")
    _, state = read(uri, None, 3)
    for first in range(3, 6):
        numbers(delta, uri, range(first, first + 1))
    found, state = read(uri, state, 3)
    assert found == [3, 4, 5]
    shutil.rmtree(uri)
    shutil.copytree(tmp_path / "early", uri)
    with pytest.raises(PlanError, match="has version 2 as its newest, and the checkpoint goes on with version"):
        read(uri, state, 1)
    shutil.rmtree(uri)
    for first in range(101, 109):
        numbers(delta, uri, range(first, first + 1))
    with pytest.raises(PlanError, match="is another table than the one that the checkpoint is of"):
        read(uri, state, 1)


def test_a_version_that_is_not_there_yet_is_waited_for(delta: Any, tmp_path: Path) -> None:
    """Also by a later attempt, where the query was told to begin with it."""
    uri = str(tmp_path / "table")
    numbers(delta, uri, range(1))
    reader = delta_source(options(startingVersion="3"), uri).open(0, 1, [])
    begun = reader.snapshot()
    wait_until(lambda: reader.poll(9) is None and reader.snapshot() != begun, "the position is known")
    state = reader.snapshot()
    reader.close()
    later = delta_source(options(startingVersion="3"), uri).open(0, 1, [state])
    for first in range(1, 4):
        numbers(delta, uri, range(first, first + 1))
    found: list[dict[str, Any]] = []
    wait_until(lambda: bool(found.extend(rows_of(later.poll(9))) or found), "the version has come")
    later.close()
    assert found == [{"n": 3}]


def test_files_without_a_column_of_the_delta_table_give_nulls(delta: Any, tmp_path: Path) -> None:
    """Those that were written before the table got it."""
    uri = str(tmp_path / "table")
    numbers(delta, uri, range(3))
    rows = pa.table({"n": pa.array([3], pa.int64()), "m": ["new"]})
    delta.write_deltalake(uri, rows, mode="append", schema_mode="merge")
    reader = delta_source(options(), uri).available_now().open(0, 1, [])
    found: list[dict[str, Any]] = []
    wait_until(lambda: (found.extend(rows_of(reader.poll(9))), reader.is_ended)[1], "it has ended")
    reader.close()
    assert sorted(found, key=lambda row: row["n"]) == [
        *({"n": number, "m": None} for number in range(3)),
        {"n": 3, "m": "new"},
    ]


def rows_of(batch: pa.RecordBatch | None) -> list[dict[str, Any]]:
    """The rows of a batch, if there is one."""
    return [] if batch is None else batch.to_pylist()
