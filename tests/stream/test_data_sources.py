# SPDX-License-Identifier: Apache-2.0
"""PySpark's Python data sources in a query without Spark: each row once, whatever is killed, and what is told."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from penstock.errors import PlanError, ProducerFailedError, ProtocolError, TaskCancelledError
from penstock.graph import JobGraph
from penstock.record import PartitionerSpec
from penstock.spark.data_source_reader import DataSourceStream, _Reading
from penstock.spark.data_source_writer import data_source_sink
from penstock.spark.data_sources import made, made_to_write
from penstock.stream.commit_sink import MESSAGES
from penstock.stream.folder_sink import FolderSink
from penstock.stream.in_flight import allows_overtaking
from penstock.stream.partitioned_source import PartitionedReader
from penstock.stream.sinks import SinkOperator
from penstock.testing import DEADLINE, wait_until
from penstock_torture.local_query import LocalQuery, linear_graph, location
from python_sources import Ledger, Numbers, SimpleNumbers, ledger
from underway import listed

OF_KILLS = (TaskCancelledError, ProducerFailedError)
KINDS = [(Numbers, {}), (Numbers, {"arrow": "true"}), (SimpleNumbers, {})]


def stream(folder: Path, kind: type[Numbers] = Numbers, rows: int = 7, **options: str) -> DataSourceStream:
    """The source over what `folder` says."""
    return DataSourceStream(made(kind, {"path": str(folder), **options}, None), rows)


def graph(folder: Path, source: DataSourceStream) -> JobGraph:
    """Its rows into files of `out`, by two tasks."""
    sink = SinkOperator(FolderSink(pafs.LocalFileSystem(), str(folder / "out"), source.schema, "q"))
    stages = [(1, (), source.schema, None), (2, (sink,), source.schema, PartitionerSpec("rebalance"))]
    return linear_graph(source, stages)


def rows_in(folder: Path) -> Counter[int]:
    """The numbers that a reader of `out` sees."""
    files = sorted(str(file) for file in listed(folder / "out", "part-*"))
    return Counter(ds.dataset(files, pa.schema([("n", pa.int64())])).to_table()["n"].to_pylist() if files else ())


def committed(folder: Path) -> list[int]:
    """The offsets that the source was told of."""
    told = folder / "committed"
    return [json.loads(line)["n"] for line in told.read_text().splitlines()] if told.exists() else []


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=["rows", "batches", "simple"])
def test_each_row_comes_once_whatever_is_killed(tmp_path: Path, kind: type[Numbers], options: dict[str, str]) -> None:
    """Over two runs with kills; and ranges are committed in order."""
    chance, end = random.Random(5), 0
    for _ in range(2):
        (tmp_path / "end").write_text(str(end))
        with LocalQuery(graph(tmp_path, stream(tmp_path, kind, **options)), location(tmp_path)) as query:
            query.start()
            for _ in range(8):
                end += chance.choice([0, 1, 40])
                (tmp_path / ".end").write_text(str(end))
                (tmp_path / ".end").rename(tmp_path / "end")
                query.run(time.monotonic() + chance.uniform(0.0, 0.04))
                if chance.random() < 0.5:
                    query.kill((chance.choice([0, 1]), 0))
            until = time.monotonic() + DEADLINE
            while len(rows_in(tmp_path)) < end and time.monotonic() < until:
                query.run(time.monotonic() + 0.05)
            query.stop()
            query.run_through()
            assert not [error for error in query.failures if not isinstance(error, OF_KILLS)]
        assert rows_in(tmp_path) == Counter(range(end))
        assert 0 < committed(tmp_path)[-1] <= end
    assert committed(tmp_path) == sorted(committed(tmp_path))


def test_rows_of_one_range_are_one_batch_of_event_time(tmp_path: Path) -> None:
    """The reader says in which range it is, also in the middle of it, and that it is between two."""
    (tmp_path / "end").write_text("3")
    with closing(stream(tmp_path).open(0, 1, [])) as reader:
        assert reader.unit_of("all") is None
        for _ in range(3):
            wait_until(lambda: reader.poll(1) is not None, "a row has come")
            assert json.loads(str(reader.unit_of("all"))) == {"n": 0}
        wait_until(lambda: reader.poll(1) is None and reader.unit_of("all") is None, "the range is over")


@pytest.mark.parametrize("arrow", ["false", "true"])
def test_what_is_written_is_committed_once_whatever_is_killed(tmp_path: Path, arrow: str) -> None:
    """By three tasks that write and one that commits, in two runs; batches have rising ids."""
    chance, end = random.Random(arrow), 0
    options = {"path": str(tmp_path / "ledger"), "arrow": arrow}
    for _ in range(2):
        (tmp_path / "end").write_text(str(end))
        source = stream(tmp_path)
        sink = data_source_sink(made_to_write(Ledger, options, source.schema), "q", "UTC")
        stages = [
            (1, (), source.schema, None),
            (3, (sink.writing,), MESSAGES, PartitionerSpec("rebalance")),
            (1, (SinkOperator(sink),), MESSAGES, PartitionerSpec("to_one")),
        ]
        with LocalQuery(linear_graph(source, stages), location(tmp_path)) as query:
            query.start()
            for _ in range(8):
                end += chance.choice([0, 1, 40])
                (tmp_path / ".end").write_text(str(end))
                (tmp_path / ".end").rename(tmp_path / "end")
                query.run(time.monotonic() + chance.uniform(0.0, 0.05))
                if chance.random() < 0.5:
                    query.kill(chance.choice([(0, 0), (1, 2), (2, 0)]))
            until = time.monotonic() + DEADLINE
            while len(ledger(tmp_path / "ledger")) < end and time.monotonic() < until:
                query.run(time.monotonic() + 0.05)
            query.stop()
            query.run_through()
            assert not [error for error in query.failures if not isinstance(error, OF_KILLS)]
        assert ledger(tmp_path / "ledger") == [{"n": number, "text": str(number)} for number in range(end)]


def test_a_message_that_nobody_sealed_is_not_unpickled(tmp_path: Path) -> None:
    """Another query's key, or none."""
    sinks = [data_source_sink(made_to_write(Ledger, {"path": str(tmp_path)}, MESSAGES), "q", "UTC") for _ in range(2)]
    writer = sinks[0].open(0, 1, [])
    (message,) = sinks[1].writing.apply(iter(()))
    with pytest.raises(ProtocolError, match="was not made by a task of this query"):
        writer.write(message)


def test_no_barrier_overtakes_commit_messages(tmp_path: Path) -> None:
    """In flight they would be committed after a failure, though `abort` had heard of them, and with an older seal."""
    source = stream(tmp_path)
    sink = data_source_sink(made_to_write(Ledger, {"path": str(tmp_path)}, source.schema), "q", "UTC")
    stages = [
        (1, (), source.schema, None),
        (2, (sink.writing,), MESSAGES, PartitionerSpec("rebalance")),
        (1, (SinkOperator(sink),), MESSAGES, PartitionerSpec("to_one")),
    ]
    made = linear_graph(source, stages)
    assert [allows_overtaking(made, edge.id) for edge in made.edges] == [True, False]


def polled(reader: PartitionedReader, rows: int, most: int) -> list[int]:
    """So many numbers."""
    found: list[int] = []

    def enough() -> bool:
        batch = reader.poll(min(most, rows - len(found)))
        found.extend([] if batch is None else batch["n"].to_pylist())
        return len(found) >= rows

    wait_until(enough, "the rows have come")
    return found


def test_a_position_in_a_range_keeps_its_end(tmp_path: Path) -> None:
    """More has come when the task starts again: it plans the range that it was in, and not a longer one."""
    (tmp_path / "end").write_text("20")
    first = stream(tmp_path).open(0, 1, [])
    assert polled(first, 13, 5) == list(range(13))
    state = first.snapshot()
    first.close()
    (tmp_path / "end").write_text("90")
    again = stream(tmp_path).open(0, 1, [state])
    assert polled(again, 77, 50) == list(range(13, 90))
    again.close()


class LatestNumbers(Numbers):
    """Begins at its end."""

    def streamReader(self, schema: Any) -> Any:
        """A reader whose first offset is the newest."""
        reader = super().streamReader(schema)
        reader.initialOffset = reader.latestOffset
        return reader


def test_a_query_begins_at_the_offset_that_the_source_said_first(tmp_path: Path) -> None:
    """It is asked once, and not by each reader that was told no position; a checkpoint ahead of all rows has it."""
    (tmp_path / "end").write_text("20")
    source = stream(tmp_path, LatestNumbers)
    begun = source.begun_at(source.first_position())
    (tmp_path / "end").write_text("30")
    with closing(begun.open(0, 1, [])) as reader:
        state = reader.snapshot()
    for opened in (begun.open(0, 1, []), begun.open(0, 1, []), source.open(0, 1, [state])):
        with closing(opened) as reader:
            assert polled(reader, 10, 10) == list(range(20, 30))


def test_what_is_available_is_one_range_or_what_the_source_says(tmp_path: Path) -> None:
    """As in Spark; the next run goes on, and one that died in a range ends it and reads one more."""
    (tmp_path / "end").write_text("25")
    first = stream(tmp_path).available_now().open(0, 1, [])
    assert polled(first, 25, 10) == list(range(25))
    wait_until(lambda: first.poll(1) is None and first.is_ended, "it has ended")
    (tmp_path / "end").write_text("60")
    second = stream(tmp_path).available_now().open(0, 1, [first.snapshot()])
    assert polled(second, 11, 10) == list(range(25, 36))
    (tmp_path / "end").write_text("70")
    third = stream(tmp_path).available_now().open(0, 1, [second.snapshot()])
    assert polled(third, 34, 50) == list(range(36, 70))
    wait_until(lambda: third.poll(1) is None and third.is_ended, "it has ended")
    third.completed(third.snapshot())
    wait_until(lambda: committed(tmp_path)[-1:] == [70], "the source was told of its last range")
    for reader in (first, second, third):
        reader.close()


@pytest.mark.parametrize("kind", [Numbers, SimpleNumbers])
def test_a_run_of_what_is_available_tells_the_source_of_its_end(tmp_path: Path, kind: type[Numbers]) -> None:
    """By the last checkpoint, which is complete after the source's last row."""
    (tmp_path / "end").write_text("9")
    source = stream(tmp_path, kind).available_now()
    with LocalQuery(graph(tmp_path, source), location(tmp_path), available_now=True) as query:
        query.start()
        query.run_through()
        assert not query.failures
    assert rows_in(tmp_path) == Counter(range(9))
    assert committed(tmp_path) == [9]


class Large(DataSource):
    """Rows of a megabyte, far more than a batch may have."""

    @classmethod
    def name(cls) -> str:
        """A name of its own."""
        return "large"

    def schema(self) -> str:
        """A text."""
        return "v string"

    def simpleStreamReader(self, schema: Any) -> Any:
        """A reader of one range."""
        return LargeRows()


class LargeRows(SimpleDataSourceStreamReader):
    """Sixty rows."""

    def initialOffset(self) -> dict[str, int]:
        """The begin."""
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[str]], dict[str, int]]:
        """All at once."""
        return iter([("x" * (1 << 20),)] * 60), {"n": 60}


def test_rows_of_a_source_come_in_batches_of_bounded_bytes() -> None:
    """Few at first, then as many as the bytes of the last ones allow."""
    reading = _Reading(DataSourceStream(made(Large, {}, None), 10_000).available_now(), None)
    found = [(batch.num_rows, batch.nbytes) for batch, _ in reading.read() if batch is not None and batch.num_rows]
    assert sum(rows for rows, _ in found) == 60
    assert max(size for _, size in found) <= 20 << 20


def test_an_error_of_the_last_commit_is_raised(tmp_path: Path) -> None:
    """By the next word of a complete checkpoint: nobody asks the source for rows any more."""

    class Refusing(Numbers):
        def streamReader(self, schema: object) -> object:  # type: ignore[override]
            reader = Numbers.streamReader(self, schema)
            reader.commit = lambda end: int(f"no {end}")  # type: ignore[method-assign,assign,return-value]
            return reader

    (tmp_path / "end").write_text("3")
    reader = stream(tmp_path, Refusing).available_now().open(0, 1, [])
    wait_until(lambda: reader.poll(9) is None and reader.is_ended, "it has ended")

    def is_raised() -> bool:
        try:
            reader.completed(reader.snapshot())
        except ValueError:
            return True
        return False

    wait_until(is_raised, "the error was raised")
    reader.close()


def test_a_source_that_waits_holds_no_barrier_up(tmp_path: Path) -> None:
    """Its position can be taken while its `latestOffset` stands in a call."""

    class Waiting(Numbers):
        def streamReader(self, schema: object) -> object:  # type: ignore[override]
            reader = Numbers.streamReader(self, schema)
            reader.latestOffset = lambda: wait_until((tmp_path / "end").exists, "it may go on") or {"n": 3}  # type: ignore[method-assign]
            return reader

    reader = stream(tmp_path, Waiting).open(0, 1, [])
    for _ in range(3):
        reader.poll(10)
        assert reader.snapshot()
    (tmp_path / "end").write_text("3")
    assert polled(reader, 3, 10) == [0, 1, 2]
    reader.close()


def test_rows_with_an_offset_that_stays_are_refused(tmp_path: Path) -> None:
    """They would come again and again."""

    class Standing(SimpleNumbers):
        def simpleStreamReader(self, schema: object) -> object:  # type: ignore[override]
            reader = SimpleNumbers.simpleStreamReader(self, schema)
            reader.read = lambda start: (iter([(1, "1")]), start)  # type: ignore[method-assign]
            return reader

    reader = stream(tmp_path, Standing).open(0, 1, [])
    with pytest.raises(PlanError, match=r"simple_numbers: read\(\) gives rows, and the offset stays"):
        polled(reader, 1, 1)
    reader.close()
