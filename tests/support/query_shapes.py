# SPDX-License-Identifier: Apache-2.0
"""Streaming queries of random shapes, and what their sinks must hold: for runs with kills and restores, in any layer.

A seed says the shape: one source, two that are united, or one whose rows go over two exchanges and meet again; then 1
to 4 exchanges by key, in turns or to all; which stages are slow, and when; whether the last one counts. It says the
timeout of barriers too. The numbers of the stages' tasks are drawn for each start. Rows are numbers, so what was
committed can be counted: each number is there once for each copy that an exchange to all makes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgpack
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kept_shapes import KINDS, counted
from penstock.api.stream import Stream
from penstock.checkpoint.found import UsableCheckpoint
from penstock.checkpoint.storage import CheckpointStorage
from penstock.stream.loop import SOURCE_STATE
from underway import listed

PARTITIONS = 5
KEYS = 50
"""A multiple of the partitions, so a key's rows are those of one partition, and rise where their order is kept."""
COPIES = 2
"""Tasks after an exchange to all: they stay as many, because each row is there once for each of them."""
WIDTHS = (1, 2, 3, 5)
TIMEOUTS = (0.0, 0.001, 0.05, None)
"""Seconds until a barrier overtakes rows; None: it never does."""
SCHEMA = pa.schema([("path", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])
MOST_EXCHANGES = {"line": 4, "union": 3, "both": 2}
"""The number of exchanges after the join, so that each shape fits `FEWEST_TASKS`."""
FEWEST_TASKS = 7

Mapped = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class QueryShape:
    """One seed's query. `pauses` are seconds for each row in the stages after the exchanges."""

    seed: int
    join: str
    exchanges: tuple[str, ...]
    pauses: tuple[float, ...]
    counts: bool
    timeout: float | None
    rescales: bool
    keeps: str = ""
    """The kind of state by which the last stage counts, if it is a processor."""

    @classmethod
    def of(cls, seed: int) -> QueryShape:
        """Of four seeds in a row each has another timeout; a quarter goes on with other numbers of tasks."""
        chance = random.Random(seed)
        join = chance.choice(list(MOST_EXCHANGES))
        kinds = ("key",) if chance.random() < 0.4 else ("key", "rebalance")
        exchanges = [chance.choice(kinds) for _ in range(chance.randint(1, MOST_EXCHANGES[join]))]
        if chance.random() < 0.3:
            exchanges[chance.randrange(len(exchanges))] = "broadcast"
        pauses = [chance.choice((0.0, 0.0, 20e-6, 100e-6)) for _ in exchanges]
        return cls(
            seed,
            join,
            tuple(exchanges),
            tuple(pauses),
            chance.random() < 0.3,
            TIMEOUTS[seed % 4],
            (seed // 4 + seed) % 4 == 0,
        )

    @classmethod
    def keeping(cls, seed: int) -> QueryShape:
        """The shape of a seed with a processor at its end, of each kind in turn."""
        return replace(cls.of(seed), counts=False, keeps=KINDS[seed % len(KINDS)])

    @property
    def sources(self) -> int:
        """The number of sources."""
        return 2 if self.join == "union" else 1

    def widths(self, chance: random.Random, most: int) -> list[int]:
        """A number of tasks for each exchange; not more than `most` in all with one for each source."""
        assert most >= FEWEST_TASKS
        kinds = [*(("key", "rebalance") if self.join == "both" else ()), *self.exchanges]
        kinds += ["key"] if self.counts or self.keeps else []
        drawn = [COPIES if kind == "broadcast" else chance.choice(WIDTHS) for kind in kinds]
        while sum(drawn) + self.sources > most:
            widest = max(range(len(drawn)), key=lambda at: drawn[at] if kinds[at] != "broadcast" else 0)
            assert drawn[widest] > 1, f"{self} needs more than {most} tasks"
            drawn[widest] = WIDTHS[WIDTHS.index(drawn[widest]) - 1]
        return drawn

    def stream(self, sources: Sequence[Stream], widths: Sequence[int]) -> Stream:
        """The query over these sources of a column `value`."""
        left = iter(widths)
        made = [source.mapInArrow(keyed(path, KEYS), SCHEMA) for path, source in enumerate(sources)]
        united = made[0].union(*made[1:]) if len(made) > 1 else made[0]
        if self.join == "both":
            by_key = united.keyBy("key", numPartitions=next(left)).mapInArrow(on_path(0), SCHEMA)
            united = by_key.union(united.rebalance(next(left)).mapInArrow(on_path(1), SCHEMA))
        for kind, pause in zip(self.exchanges, self.pauses, strict=True):
            width = next(left)
            if kind == "key":
                united = united.keyBy("key", numPartitions=width)
            else:
                united = united.rebalance(width) if kind == "rebalance" else united.broadcast(width)
            united = united.mapInArrow(slow(pause), SCHEMA)
        if self.counts:
            return united.keyBy("path", "value", numPartitions=next(left)).agg(n=("value", "count"))
        return counted(united, self.keeps, next(left)) if self.keeps else united

    def faults(self, folder: Path, rows: int) -> list[str]:
        """The faults in the rows that a plain reader of the folder sees; `rows` were given by each source."""
        files = sorted(listed(folder, "part-*"), key=lambda path: path.stat().st_mtime_ns)
        table = pa.concat_tables([ds.dataset(path).to_table() for path in files])
        copies = COPIES ** self.exchanges.count("broadcast")
        if self.counts or self.keeps in ("value", "list", "map"):
            of_number = table.group_by(["path", "value"]).aggregate([("n", "max")])["n_max"]
        else:
            of_number = table.group_by(["path", "value"]).aggregate([([], "count_all")])["count_all"]
        paths = 1 if self.join == "line" else 2
        found = []
        if len(of_number) != rows * paths or pc.max(table["value"]).as_py() != rows - 1:
            found.append(f"{rows * paths - len(of_number)} of {rows * paths} numbers are missing")
        if (short := pc.sum(pc.less(of_number, copies)).as_py()) or 0:
            found.append(f"{short} numbers have fewer than {copies} copies")
        if (long := pc.sum(pc.greater(of_number, copies)).as_py()) or 0:
            found.append(f"{long} numbers have more than {copies} copies")
        if not self.counts and not self.keeps and set(self.exchanges) == {"key"}:
            found += self._out_of_order(table)
        return found

    def _out_of_order(self, table: pa.Table) -> list[str]:
        """The order of rows of one producer and key holds over exchanges by key, and so over a chain of them."""
        last: dict[tuple[int, int], int] = {}
        for path, key, value in zip(*(table[name].to_pylist() for name in SCHEMA.names), strict=True):
            if self.join == "both" and path == 1:
                continue  # it went in turns first
            if last.get((path, key), -1) >= value:
                return [f"{value} of path {path} came behind {last[path, key]}"]
            last[path, key] = value
        return []


# Functions for tasks are made by these, so that they travel as a whole: workers can't import this module.


def keyed(path: int, keys: int) -> Mapped:
    """Gives each row its path and its key."""

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch.column("value")
            key = pc.subtract(values, pc.multiply(pc.divide(values, keys), keys))
            columns = [pa.array([path] * len(values), pa.int64()), key, values]
            yield pa.RecordBatch.from_arrays(columns, names=["path", "key", "value"])

    return give


def on_path(path: int) -> Mapped:
    """Says over which of two exchanges a row came."""

    def say(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [pa.array([path] * batch.num_rows, pa.int64()), *batch.columns[1:]]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    return say


def slow(pause: float) -> Mapped:
    """Is busy with each row for so long, in some stretches of the numbers; not with the interpreter for itself."""

    def busy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if pause and batch.num_rows and batch.column("value")[0].as_py() // 512 % 3:
                time.sleep(pause * batch.num_rows)
            yield batch

    return busy


def rows_given(location: str) -> int:
    """The number of rows that a source may have given by the newest checkpoint at a location, whichever it was."""
    storage = CheckpointStorage(location)
    newest = [entry for entry in storage.history() if isinstance(entry, UsableCheckpoint)][-1]
    most = 0
    for part in newest.metadata.parts.values():
        for _, data in storage.read(part, [chunk.name for chunk in part.chunks if chunk.name == SOURCE_STATE]):
            step, given = msgpack.unpackb(data, strict_map_key=False)
            most = max([most, *(number + count * step for number, count in given.items() if count)])
    return most
