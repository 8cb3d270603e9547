# SPDX-License-Identifier: Apache-2.0
"""Queries that fail, or whose driver goes, between their first look at a source and their first checkpoint.

For each kind of source and each way to name a start: numbers are there, a query begins, and takes no checkpoint. Its
tasks are killed or its driver is replaced, some times ahead of its first row, and each time more numbers come. A last
run ends by itself. Each number that came after the start that was named must be there once, and no other.
"""

from __future__ import annotations

import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.modes import in_mode
from penstock.api.streaming.reader import StreamReader
from penstock.api.streaming.writer import query_graph
from penstock.checkpoint.coordinator import CheckpointOptions
from penstock.graph.streaming import StreamingOptions
from penstock.settings import Settings
from penstock.stream.folder_sink import FolderSink
from penstock.stream.partitioned_source import PartitionedSource
from penstock.stream.rate import RateSource
from penstock_torture.local_query import LocalQuery, location
from penstock_torture.start_sources import arrived

_SLOTS = 8
_NUMBERS = pa.schema([("n", pa.int64())])
_FEW = 8


class Place:
    """Where numbers come: files of lines in a folder, unless a kind of source has another one."""

    def __init__(self, folder: Path, stack: ExitStack, start: str) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        self.stack = stack
        self.start = start

    def put(self, numbers: range) -> None:
        """These have come."""
        hidden = self.folder / f".{numbers.start}"
        self.write(hidden, numbers)
        hidden.rename(self.folder / f"{numbers.start}")

    def write(self, file: Path, numbers: range) -> None:
        """A file with these."""
        file.write_text("".join(f"{self.line(number)}\n" for number in numbers))

    def line(self, number: int) -> str:
        """A line of a file."""
        return str(number) if self.start != "json" else json.dumps({"n": number})

    def read(self) -> Any:
        """The source that a new driver makes."""
        reader = StreamReader(None).format(self.start)
        return _source_of(reader if self.start == "text" else reader.schema(_NUMBERS), str(self.folder))

    def expected(self, first: int, end: int) -> Iterable[int]:
        """The numbers to be read, where so many were there at the start, and so many are in the end."""
        return range(end)


class Parquet(Place):
    """Files of Parquet."""

    def write(self, file: Path, numbers: range) -> None:
        """A file with these."""
        pq.write_table(pa.table([pa.array(numbers, pa.int64())], schema=_NUMBERS), file)


class Delta(Place):
    """Versions of a table."""

    def put(self, numbers: range) -> None:
        """One more version."""
        from deltalake import write_deltalake

        write_deltalake(str(self.folder), pa.table([pa.array(numbers, pa.int64())], schema=_NUMBERS), mode="append")

    def read(self) -> Any:
        """The table, from a version on."""
        reader = StreamReader(None).format("delta")
        return _source_of(reader.option("startingVersion", self.start) if self.start else reader, str(self.folder))

    def expected(self, first: int, end: int) -> Iterable[int]:
        """The first version has all that there was."""
        return range(first if self.start in ("1", "latest") else 0, end)


class Kafka(Place):
    """Messages of a topic with four partitions."""

    def __init__(self, folder: Path, stack: ExitStack, start: str) -> None:
        from penstock_torture.mock_kafka import mock_cluster

        super().__init__(folder, stack, start)
        self.settings = stack.enter_context(mock_cluster())

    def put(self, numbers: range) -> None:
        """Each into the partition that it says."""
        from penstock_torture.mock_kafka import put

        put(self.settings, "in", numbers)

    def read(self) -> Any:
        """The topic, from offsets on."""
        reader = StreamReader(None).format("kafka").option("subscribe", "in").option("startingOffsets", self.start)
        for name, value in self.settings.given:
            reader = reader.option(f"kafka.{name}", value)
        source = _source_of(reader, None)
        return replace(source, settings=self.settings)

    def expected(self, first: int, end: int) -> Iterable[int]:
        """Those from the offsets on."""
        if self.start in ("earliest", "latest"):
            return range(first if self.start == "latest" else 0, end)
        offsets = {int(number): at for number, at in json.loads(self.start)["in"].items()}
        begin = {number: {-2: 0, -1: first // 4}.get(at, at) for number, at in offsets.items()}
        return (number for number in range(end) if number // 4 >= begin[number % 4])


class Partitions(Place):
    """Two partitions of a source of somebody's own."""

    schema = _NUMBERS
    name = "two partitions"

    def read(self) -> Any:
        """The source."""
        return PartitionedSource(_Halves(self.folder))


class DataSources(Place):
    """A Python data source whose offsets begin at 0, or at its newest."""

    def read(self) -> Any:
        """The source."""
        from penstock.spark.data_source_reader import DataSourceStream
        from penstock.spark.data_sources import made
        from penstock_torture.start_sources import Arrived

        return DataSourceStream(made(Arrived, {"path": str(self.folder), "start": self.start}, None), 7)

    def expected(self, first: int, end: int) -> Iterable[int]:
        """All, or those that are new."""
        return range(first if self.start == "latest" else 0, end)


class Rate(Place):
    """Numbers that the source makes up."""

    def read(self) -> Any:
        """So many."""
        return RateSource(200.0, 2, 40)

    def expected(self, first: int, end: int) -> Iterable[int]:
        """All."""
        return range(40)


STARTS: dict[str, tuple[type[Place], str]] = {
    **{f"{name} files": (Place, name) for name in ("text", "csv", "json")},
    "parquet files": (Parquet, "parquet"),
    "delta": (Delta, ""),
    "delta from version 0": (Delta, "0"),
    "delta from version 1": (Delta, "1"),
    "delta from the latest": (Delta, "latest"),
    "kafka from the earliest": (Kafka, "earliest"),
    "kafka from the latest": (Kafka, "latest"),
    "kafka from offsets": (Kafka, json.dumps({"in": {"0": 1, "1": -1, "2": -2, "3": 2}})),
    "partitions": (Partitions, ""),
    "data source": (DataSources, "earliest"),
    "data source from the latest": (DataSources, "latest"),
    "rate": (Rate, ""),
}
"""Each kind of source with each way to name a start."""


def run_start(seed: int, folder: Path) -> tuple[str, str]:
    """The words of a seed's start, and what is wrong; empty: nothing."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    name = list(STARTS)[seed % len(STARTS)]
    words = [name]
    try:
        with ExitStack() as stack:
            form, start = STARTS[name]
            place = form(folder, stack, start)
            end = first = chance.randint(1, 3) * _FEW
            place.put(range(first))
            for _ in range(chance.randint(1, 3)):
                words.append(chance.choice(("killed", "left", "killed and left")))
                end = _fail(place, folder, chance, words[-1], end)
            with _query(place, folder, is_last=True) as query:
                query.run_through()
            wanted = Counter(place.expected(first, end))
    except Exception:  # noqa: BLE001 - no start may fail
        return ", ".join(words), traceback.format_exc()
    files = sorted(str(file) for file in (folder / "out").glob("part-*"))
    found = Counter(map(int, ds.dataset(files).to_table().column(0).to_pylist())) if files else Counter[int]()
    return ", ".join(words), "" if found == wanted else f"lost {wanted - found}, too many {found - wanted}"


def _fail(place: Place, folder: Path, chance: random.Random, how: str, end: int) -> int:
    """One driver without a checkpoint, and the number of rows that have come by its end."""
    with _query(place, folder, is_last=False) as query:
        for _ in range(chance.randint(1, 2) if "killed" in how else 0):
            query.run(time.monotonic() + chance.choice((0.0, 0.02, 0.1)))
            place.put(range(end, end := end + _FEW))
            query.kill(chance.choice(list(query.lines)))
        query.run(time.monotonic() + chance.choice((0.0, 0.1)))
    place.put(range(end, end := end + _FEW))
    return end


def _query(place: Place, folder: Path, *, is_last: bool) -> LocalQuery:
    """A driver's query, begun; the last one takes checkpoints, and ends when it has read what is there."""
    source = place.read()
    if is_last:
        source = source.available_now()
    step = SourceStep(source.name, source.schema, source, limit=source.splits(), partitions=2, streaming=True)
    stream = Stream((step,))
    if stream.columns != ["n"]:
        stream = stream.select(*({"value", "n"} & set(stream.columns)))
    sink = FolderSink(pafs.LocalFileSystem(), str(folder / "out"), stream.schema, "query")
    graph = query_graph(in_mode(stream.branches, None), sink, Settings(), _SLOTS, StreamingOptions("q", "query", ""))
    options = CheckpointOptions(interval=0.02 if is_last else None, tolerable_failures=99)
    query = LocalQuery(graph, location(folder), options, available_now=is_last)
    query.start()
    return query


def _source_of(reader: StreamReader, path: str | None) -> Any:
    (step,) = reader.load(path).branches
    return step.source  # type: ignore[union-attr]


class _Halves:
    """The numbers of files, odd and even ones, each as a partition."""

    schema = _NUMBERS
    name = "two halves"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[str]:
        return ("0", "1")

    def read(self, partition: str, offset: int | None) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        given = offset or 0
        while True:
            numbers = [each for each in arrived(self._folder) if each % 2 == int(partition)]
            if given == len(numbers):
                yield None, given
                continue
            batch = pa.record_batch([pa.array(numbers[given:], pa.int64())], schema=_NUMBERS)
            given = len(numbers)
            yield batch, given
