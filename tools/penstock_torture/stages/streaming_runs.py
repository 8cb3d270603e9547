# SPDX-License-Identifier: Apache-2.0
"""Random whole queries beside Structured Streaming, run by run: files come, both run with `availableNow` and end.

After each run the rows that both have written must be the same. Files come to each source in any number, or to none,
some rows are copies of earlier ones, and some come late where a verb drops them. Penstock runs at other widths each
time, is stopped or left and begun again, and its tasks are killed.

What docs/event-time.md tells as different is not drawn: rows that are just as old as the watermark (times are even,
the delay odd), rows of an outer join that lack the key, late rows of joins, runs in which one of two sources has no
rows.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, StreamingQueryException

import penstock
from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.stream.arriving_files import FilesSource
from penstock.stream.file_rows import ParquetFileFormat
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, location
from penstock_torture.stages.queries import OFTEN, SCHEMA, published_graph, random_rows
from penstock_torture.stages.query_pairs import Joined
from penstock_torture.stages.query_plans import Verb, inputs_of, of_streams, random_verbs
from penstock_torture.stages.query_processors import Processed
from penstock_torture.stages.query_verbs import MS, Distinct, Grouped, Rows
from penstock_torture.stages.values import Found, batch_of, group_sizes, spelled

_COLUMNS = "k long, s string, t timestamp, v long"
_SCHEMA = SCHEMA.set(SCHEMA.get_field_index("t"), pa.field("t", pa.timestamp("us", "UTC")))
_WHOLE = 8
"""Each so manieth seed runs with a driver and tasks of Spark, the others in this process."""
_DELAY = 201
_LATER = 2_000
"""Milliseconds from the rows of one run to those of the next."""
NOT_COMPARED = "Spark refuses or fails:"
"""The words of a query that Spark has not begin with these."""
_STORE = "spark.sql.streaming.stateStore.providerClass"
_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The one that has processors."""


@dataclass(frozen=True)
class _Run:
    """How Penstock runs once: its widths, how it ends before its end, and how many of its tasks are killed."""

    widths: tuple[int, ...]
    files: int
    stops: str
    kills: int


def compare_runs(seed: int, spark: Any, folder: Path) -> tuple[str, str]:
    """The words of a seed's query, and what is wrong; empty: nothing."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    verbs = random_verbs(chance, beside_spark=True)
    words = ", ".join(map(str, verbs))
    is_outer = isinstance(verbs[0], Joined) and verbs[0].how != "inner"
    days = _Days(chance, has_late=isinstance(verbs[0], Distinct | Grouped), has_nulls=not is_outer)
    has_processor = isinstance(verbs[-1], Processed)
    inputs = [str(folder / f"in{number}") for number in range(inputs_of(verbs))]
    try:
        for number in range(chance.randint(1, 3)):
            has_files = number == 0 or chance.random() < 0.8
            for place in inputs:
                days.add_files(Path(place), number if has_files else None)
            run = _random_run(chance, len(verbs), may_stop=days.is_in_order)
            spark.conf.set(_STORE, _ROCKS) if has_processor else spark.conf.unset(_STORE)
            theirs = _start_spark(spark, verbs, inputs, folder)
            if seed % _WHOLE:
                _run_here(verbs, inputs, folder, run, chance)
            else:
                _run_penstock(spark, verbs, inputs, folder, run)
            if not _has_ended(theirs):
                return f"{NOT_COMPARED} {words}: Spark's query has not ended", ""
            ours, wanted = _written(folder / "penstock"), _written(folder / "spark")
            if ours != wanted:
                return words, f"run {number + 1} ({run}), Penstock beside Spark: {group_sizes(ours, wanted)}"
    except (AnalysisException, StreamingQueryException) as error:  # Penstock's errors are its own
        return f"{NOT_COMPARED} {words}: {str(error).splitlines()[0]}", ""
    except Exception:  # noqa: BLE001 - which side fails is what is being asked
        return words, traceback.format_exc()
    return words, ""


class _Days:
    """The files of each run."""

    def __init__(self, chance: random.Random, *, has_late: bool, has_nulls: bool) -> None:
        self._chance = chance
        self._has_late = has_late
        self._has_nulls = has_nulls
        self._last: Rows = []
        self.is_in_order = chance.random() < 0.5
        """True if a run's files may be read in parts: nothing in them is older than their order says."""

    def add_files(self, folder: Path, run: int | None) -> None:
        """Some, with rows of the time of this run; None: none come to any source."""
        folder.mkdir(parents=True, exist_ok=True)
        if run is None:
            return
        at = 1_000 + run * _LATER
        count = self._chance.choice((1, 1, 2, 3))
        for number in range(min(count, 1) if self.is_in_order else count):
            rows = self._rows(self._chance.choice((1, 5, 60, 200)), at)
            if run and self._has_late and not self.is_in_order:
                rows += self._rows(self._chance.choice((0, 1, 5)), max(at - 5 * _LATER // 2, 100))
            rows += self._chance.sample(self._last, min(len(self._last), self._chance.choice((0, 0, 3))))
            pq.write_table(pa.Table.from_batches([batch_of(rows, _SCHEMA)]), folder / f"{run}-{number}.parquet")
            self._last = rows[-20:] if self._has_late else []

    def _rows(self, count: int, first: int) -> Rows:
        rows = random_rows(self._chance, count, first)
        even = [{**row, "t": row["t"] // (2 * MS) * (2 * MS)} for row in rows]
        return [row for row in even if self._has_nulls or row["k"] is not None]


def _random_run(chance: random.Random, verbs: int, *, may_stop: bool) -> _Run:
    stops = chance.choice(("", "", "leave", "stop" if may_stop else "leave"))
    widths = tuple(chance.choice((1, 2, 3)) for _ in range(verbs))
    return _Run(widths, chance.choice((1, 2)), stops, chance.choice((0, 0, 1, 2)))


def _start_spark(spark: Any, verbs: Sequence[Any], inputs: Sequence[str], folder: Path) -> Any:
    frames: list[Any] = [
        spark.readStream.schema(_COLUMNS).parquet(place).withWatermark("t", f"{_DELAY} milliseconds")
        for place in inputs
    ]
    for verb in verbs:
        frames = [verb.of_frame(frames)]
    return _start(frames[0], folder, "theirs", "spark")


def _run_here(verbs: Sequence[Verb], inputs: Sequence[str], folder: Path, run: _Run, chance: random.Random) -> None:
    """In this process, which costs little."""
    streams = []
    for number, place in enumerate(inputs):
        source = FilesSource(pafs.LocalFileSystem(), place, ParquetFileFormat(_SCHEMA)).available_now()
        step = SourceStep(place, _SCHEMA, source, partitions=run.files, streaming=True, uid=f"source-{number}")
        streams.append(_timed(Stream((step,))))
    graph = published_graph(of_streams(verbs, streams, run.widths), folder / "penstock")
    for is_last in (False, True) if run.stops else (True,):
        with LocalQuery(graph, location(folder), settings=OFTEN, available_now=True) as query:
            query.start()
            for _ in range(run.kills):
                query.run(time.monotonic() + chance.uniform(0.0, 0.06))
                query.kill(chance.choice(list(query.lines)))
            if is_last or run.stops == "stop":
                if not is_last:
                    query.stop()
                query.run_through()


def _run_penstock(spark: Any, verbs: Sequence[Verb], inputs: Sequence[str], folder: Path, run: _Run) -> None:
    """As a user does, in tasks of Spark."""
    read = penstock.readStream(spark).format("parquet").schema(_COLUMNS).option("numPartitions", run.files)
    stream = of_streams(verbs, [_timed(read.load(place)) for place in inputs], run.widths)
    if run.stops:
        _start(stream, folder, "ours", "penstock").stop()
    if not _has_ended(_start(stream, folder, "ours", "penstock")):
        raise AssertionError("Penstock's query has not ended")


def _timed(rows: Any) -> Any:
    return rows.withWatermark("t", f"{_DELAY} milliseconds")


def _start(rows: Any, folder: Path, checkpoints: str, out: str) -> Any:
    writer = rows.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(folder / checkpoints)).start(str(folder / out))


def _has_ended(query: Any) -> bool:
    if query.awaitTermination(DEADLINE):
        return True
    query.stop()
    return False


def _written(folder: Path) -> Found:
    files = [str(path) for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_"))]
    rows = [row for file in files for row in ds.dataset(file, format="parquet").to_table().to_pylist()]
    return spelled(rows)
