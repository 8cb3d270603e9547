# SPDX-License-Identifier: Apache-2.0
"""Random whole queries of one to four verbs with state, through kills and at other widths, beside plain Python.

All rows are on time and the input has an end, so the rows that are published in the end are those of the same verbs
over a list. The queries run in this process (`penstock_torture.local_query`): a seed says the query and the rows, and
the moments of kills move with the machine.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.modes import in_mode
from penstock.api.streaming.writer import query_graph
from penstock.graph import JobGraph
from penstock.graph.streaming import StreamingOptions
from penstock.settings import Settings
from penstock.stream.folder_sink import FolderSink
from penstock.stream.rate import RateSource
from penstock_torture.local_query import LocalQuery, location
from penstock_torture.stages.query_verbs import MS, Rows, Verb, random_verbs
from penstock_torture.stages.values import TIME, batch_of, group_sizes, spelled

DELAY = 200
"""Milliseconds of the watermark; rows are out of order by half of that at most."""
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", TIME), ("v", pa.int64())])
_OFTEN = Settings.from_conf({"spark.penstock.streaming.watermarkInterval": "1ms"})
_WIDTHS = (1, 2, 3)
_SLOTS = 32
_SLOW = 2_000.0
"""Rows a second of runs that are to end early."""


def random_rows(chance: random.Random, count: int, first: int = 1_000) -> Rows:
    """Rows from a millisecond on, of which some are there twice."""
    rows: Rows = []
    for number in range(count):
        at = first + number * 2 - chance.randrange(DELAY // 2)
        key, text = chance.choice((None, 1, 2, 3)), chance.choice(("", "a", None))
        rows.append({"k": key, "s": text, "t": at * MS, "v": chance.choice((None, 1, 2, 3))})
        if chance.random() < 0.1:
            rows.append(dict(rows[-1]))
    return rows


def after_verbs(verbs: list[Verb], rows: Rows) -> Rows:
    """All that comes of rows."""
    for verb in verbs:
        rows = verb.of_rows(rows)
    return rows


def run_query(seed: int, folder: Path) -> tuple[str, str]:
    """The words of a seed's query, and what is wrong; empty: nothing."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    verbs, rows = random_verbs(chance), random_rows(chance, chance.choice((50, 300, 900)))
    words = f"{len(rows)} rows, {', '.join(map(str, verbs))}"
    try:
        _run(batch_of(rows, SCHEMA), verbs, folder, chance)
        found = spelled(ds.dataset(folder / "out", format="parquet").to_table().to_pylist())
        wanted = spelled(after_verbs(verbs, rows))
        return words, "" if found == wanted else group_sizes(found, wanted)
    except Exception:  # noqa: BLE001 - no query may fail
        return words, traceback.format_exc()


def _run(rows: pa.RecordBatch, verbs: list[Verb], folder: Path, chance: random.Random) -> None:
    """In some runs at other widths, of which the last one comes to the end; tasks are killed in each."""
    for rate in (*(_SLOW,) * chance.randint(0, 2), 0.0):
        graph = _graph(rows, verbs, folder, [chance.choice(_WIDTHS) for _ in verbs], rate)
        with LocalQuery(graph, location(folder), settings=_OFTEN, unaligned=chance.random() < 0.5) as query:
            query.start()
            for _ in range(chance.randint(0, 2)):
                if query.run(time.monotonic() + chance.uniform(0.0, 0.1)):
                    return
                query.kill(chance.choice(list(query.lines)))
            if rate == 0.0:
                query.run_through()
            elif query.run(time.monotonic() + chance.uniform(0.0, 0.1)):
                return


def _graph(rows: pa.RecordBatch, verbs: list[Verb], folder: Path, widths: list[int], rate: float) -> JobGraph:
    def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield rows.take(batch.column("value"))

    source = RateSource(rate, 1 + rows.num_rows % 2, rows.num_rows)
    step = SourceStep(source.name, source.schema, source, partitions=1, streaming=True)
    stream = Stream((step,)).mapInArrow(numbered, SCHEMA).withWatermark("t", f"{DELAY} milliseconds")
    for verb, width in zip(verbs, widths, strict=True):
        stream = verb.of_stream(stream, width)
    sink = FolderSink(pafs.LocalFileSystem(), str(folder / "out"), stream.schema, "query")
    return query_graph(in_mode(stream.branches, None), sink, _OFTEN, _SLOTS, StreamingOptions("q", "query", ""))
