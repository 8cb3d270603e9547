# SPDX-License-Identifier: Apache-2.0
"""The queries of the failing world: sources of three kinds, exchanges, perhaps a count; and what must come out.

Rows are numbers, each source's from 0 on. A `rate` source makes them, `files` are read as they arrive in a folder,
`log` is a source as users write them, over a file that is read through the same file systems. `connected` shapes have
other connectors too (`penstock_torture.world_connectors`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as paj
import pyarrow.parquet as pq

from penstock.api.line_formats import TextLines
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.writer import query_graph
from penstock.graph import JobGraph
from penstock.graph.streaming import StreamingOptions
from penstock.machine.locations import here
from penstock.settings import Settings
from penstock.stream.arriving_files import FilesSource
from penstock.stream.file_rows import LineFileFormat
from penstock.stream.folder_sink import FolderSink
from penstock.stream.partitioned_source import PartitionedSource
from penstock.stream.rate import RateSource
from penstock.stream.sinks import StreamSink
from penstock_torture.world_batches import batch_faults, batches_sink
from penstock_torture.world_connectors import (
    BATCHED,
    MESSAGE,
    SINKS,
    SOURCES,
    as_messages,
    connected_faults,
    connected_sink,
    connected_source,
    keyed_faults,
    merged_faults,
)

FILES = "files"
KINDS = ("rate", FILES, "log")
FORMS = (("parquet", False), ("parquet", True), ("csv", False), ("json", True), ("csv", True))
"""The form of the sink's files, and True where they lie in a folder for each key."""
EXCHANGES = ("key", "rebalance")
SCHEMA = pa.schema([("path", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])
KEYS = 20
SLOTS = 14
_PARTITIONS = 2
_LOG_ROWS = 25

Mapped = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class WorldShape:
    """One seed's query: the kinds of its sources, its exchanges, and how many rows each source has."""

    sources: tuple[str, ...]
    exchanges: tuple[str, ...]
    counts: bool
    rows: int
    per_second: int
    sink: str = FILES

    @classmethod
    def of(cls, chance: random.Random) -> WorldShape:
        """A third has two sources, which are united."""
        count = 2 if chance.random() < 0.35 else 1
        sources = tuple(chance.choice(KINDS) for _ in range(count))
        exchanges = tuple(chance.choice(EXCHANGES) for _ in range(chance.randint(1, 2)))
        return cls(sources, exchanges, chance.random() < 0.25, chance.randint(200, 900), chance.choice((1500, 4000)))

    @classmethod
    def connected(cls, chance: random.Random) -> WorldShape:
        """One with a connector at one end or at both."""
        count = 2 if chance.random() < 0.25 else 1
        sink = chance.choice((*SINKS, FILES))
        kinds = SOURCES if sink == FILES else (*KINDS, *SOURCES)
        sources = tuple(chance.choice(kinds) for _ in range(count))
        exchanges = tuple(chance.choice(EXCHANGES) for _ in range(chance.randint(1, 2)))
        return cls(sources, exchanges, False, chance.randint(200, 900), chance.choice((1500, 4000)), sink)

    @classmethod
    def batched(cls, chance: random.Random) -> WorldShape:
        """One with a table by keys, or a function for each batch."""
        count = 2 if chance.random() < 0.25 else 1
        sources = tuple(chance.choice((*KINDS, *SOURCES)) for _ in range(count))
        exchanges = tuple(chance.choice(EXCHANGES) for _ in range(chance.randint(1, 2)))
        rows, per_second = chance.randint(200, 900), chance.choice((1500, 4000))
        return cls(sources, exchanges, False, rows, per_second, chance.choice(BATCHED))

    @property
    def name(self) -> str:
        """The name for a line."""
        steps = [*self.exchanges, *(["count"] if self.counts else [])]
        if self.sink != FILES:
            return f"{'+'.join(self.sources)}>{'>'.join(steps)}>{self.sink}"
        form, is_partitioned = self.form
        return f"{'+'.join(self.sources)}>{'>'.join(steps)}>{form}{'/key' if is_partitioned else ''}"

    @property
    def form(self) -> tuple[str, bool]:
        """The form of its files; it draws no number, so that seeds stay what they are."""
        return FORMS[self.rows % len(FORMS)]

    @property
    def has_end(self) -> bool:
        """True if the query ends by itself."""
        return not {"files", *SOURCES} & set(self.sources)

    @property
    def is_consumed(self) -> bool:
        """True if a consumer may take the sink's files."""
        return self.sink in (FILES, "keyed")

    @property
    def has_counts(self) -> bool:
        """True if the sink has counts by key."""
        return self.sink in ("keyed", "merged")

    def widths(self, chance: random.Random) -> list[int]:
        """Numbers of tasks after the exchanges."""
        return [
            chance.choice((1, 2, 3))
            for _ in (*self.exchanges, *(["count"] if self.counts or self.has_counts else []))
        ]

    def graph(
        self, place: QueryPlace, widths: Sequence[int], *, turned: bool = False, other: bool = False
    ) -> JobGraph:
        """The plan; `turned`: its sources are united in the other order. `other`: it is another one."""
        streams = [self._stream(kind, path, place) for path, kind in enumerate(self.sources)]
        if turned:
            streams.reverse()
        united = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
        left = iter(widths)
        for kind in self.exchanges:
            width = next(left)
            united = united.keyBy("key", numPartitions=width) if kind == "key" else united.rebalance(width)
            united = united.mapInArrow(passed(), SCHEMA)
        if other:
            united = united.keyBy("value", numPartitions=2).mapInArrow(passed(), SCHEMA).keyBy("key", numPartitions=2)
            united = united.mapInArrow(passed(), SCHEMA)
            united = united.mapInArrow(as_messages(), MESSAGE) if self.sink == "kafka" else united
        elif self.counts:
            united = united.keyBy("path", "value", numPartitions=next(left)).agg(n=("value", "count"))
        elif self.has_counts:
            united = united.keyBy("path", "key", numPartitions=next(left)).agg(n=("value", "count"))
        elif self.sink == "kafka":
            united = united.mapInArrow(as_messages(), MESSAGE)
        sink = self._sink(place, united.schema)
        options = StreamingOptions("q", "query", str(place.checkpoints))
        return query_graph(united.branches, sink, Settings(), SLOTS, options, is_kept=True)

    def _sink(self, place: QueryPlace, schema: pa.Schema) -> StreamSink:
        if self.sink == "batches":
            return batches_sink(place.checkpoints, schema, place.uid)
        if self.sink != FILES:
            return connected_sink(self.sink, place.out, schema, place.uid)
        form, is_partitioned = self.form
        by = ("key",) if is_partitioned and not self.counts else ()
        return FolderSink(here(), str(place.out), schema, place.uid, form, partition_by=by)

    def _stream(self, kind: str, path: int, place: QueryPlace) -> Stream:
        folder = place.inputs / str(path)
        source: Any
        if kind == "rate":
            source = RateSource(self.per_second, _PARTITIONS + path, self.rows)  # told apart by that
        elif kind == "files":
            source = FilesSource(here(), str(folder), LineFileFormat(TextLines()), listing_seconds=0.02)
        elif kind in SOURCES:
            source = connected_source(kind, path, folder, self.rows)
        else:
            source = PartitionedSource(LogRows(str(folder)), poll_seconds=0.005)
        step = SourceStep(
            f"{kind} {path}", source.schema, source, partitions=1 if kind in SOURCES else 1 + path, streaming=True
        )
        return Stream((step,)).mapInArrow(numbered(path), SCHEMA)

    def faults(self, folders: Sequence[Path], *, whole: bool) -> list[str]:
        """The faults in the published rows in these folders; `whole`: all of them must be there."""
        if self.sink == "keyed":
            return keyed_faults(list(folders), len(self.sources), self.rows, KEYS, whole=whole)
        if self.sink == "batches":
            return batch_faults(folders[0], self.rows * len(self.sources), whole=whole)
        if self.sink == "merged":
            return merged_faults(folders[0], len(self.sources), self.rows, KEYS, whole=whole)
        if self.sink != FILES:
            return connected_faults(self.sink, folders[0], self.rows * len(self.sources), whole=whole)
        tables = [self._table(path) for folder in folders for path in sorted(folder.rglob("part-*"))]
        if not tables:
            return ["lost: all rows"] if whole else []
        table = pa.concat_tables(tables)
        if self.counts:
            counts = table.group_by(["path", "value"]).aggregate([("n", "max")])["n_max"]
        else:
            counts = table.group_by(["path", "value"]).aggregate([([], "count_all")])["count_all"]
        found = []
        doubled = pc.sum(pc.greater(counts, 1)).as_py() or 0
        if doubled:
            found.append(f"doubled: {doubled} of {self.rows * len(self.sources)} rows")
        lost = self.rows * len(self.sources) - len(counts)
        if whole and lost:
            found.append(f"lost: {lost} of {self.rows * len(self.sources)} rows")
        return found

    def _table(self, path: Path) -> pa.Table:
        """The rows of a file, without the column that its folder has."""
        form, is_partitioned = self.form
        if form == "parquet":
            table = pq.read_table(path, partitioning=None)
        elif form == "json":
            table = paj.read_json(path)
        else:
            names = ["path", "value", "n"] if self.counts else ["path", *([] if is_partitioned else ["key"]), "value"]
            table = pacsv.read_csv(path, pacsv.ReadOptions(column_names=names))
        return table.select(["path", "value", *(["n"] if self.counts else [])])

    def is_whole(self, folders: Sequence[Path]) -> bool:
        """Tell whether all rows are published."""
        return not self.faults(folders, whole=True)


@dataclass(frozen=True, slots=True)
class QueryPlace:
    """The places from which a query reads, and to which it writes."""

    root: Path
    checkpoints: Path
    out: Path

    @property
    def inputs(self) -> Path:
        """A folder for each source."""
        return self.root / "in"

    @property
    def uid(self) -> str:
        """As the query's id is: by its checkpoint location."""
        return f"q{self.checkpoints.name}"


class LogRows:
    """A user's source: a file of lines, 25 at a time, from an offset on."""

    schema = pa.schema([("value", pa.string())])

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.name = f"log {Path(folder).name}"
        """It tells two of them apart in checkpoints."""

    def partitions(self) -> Sequence[str]:
        """Two files."""
        return ["0", "1"]

    def read(self, partition: str, offset: Any) -> Iterator[tuple[pa.RecordBatch | None, Any]]:
        """The lines after so many."""
        with here().open_input_stream(f"{self.folder}/log-{partition}") as stream:
            lines = stream.read().decode().splitlines()
        for begin in range(offset or 0, len(lines), _LOG_ROWS):
            part = lines[begin : begin + _LOG_ROWS]
            yield pa.record_batch([pa.array(part, pa.string())], schema=self.schema), begin + len(part)


# Functions for tasks are made by these, so that they travel as a whole.


def numbered(path: int) -> Mapped:
    """Gives each row its path and its key."""

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch.column("value").cast(pa.int64())
            key = pc.subtract(values, pc.multiply(pc.divide(values, KEYS), KEYS))
            yield pa.RecordBatch.from_arrays([pa.array([path] * len(values), pa.int64()), key, values], schema=SCHEMA)

    return give


def passed() -> Mapped:
    """Gives rows as they are."""

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return give
