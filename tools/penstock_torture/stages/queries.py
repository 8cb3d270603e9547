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
from penstock_torture.stages.query_pairs import Top
from penstock_torture.stages.query_plans import Verb, inputs_of, of_lists, of_streams, random_verbs
from penstock_torture.stages.query_verbs import MS, Rows
from penstock_torture.stages.values import TIME, batch_of, group_sizes, spelled

DELAY = 200
"""Milliseconds of the watermark; rows are out of order by half of that at most."""
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", TIME), ("v", pa.int64())])
OFTEN = Settings.from_conf({"spark.penstock.streaming.watermarkInterval": "1ms"})
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


def run_query(seed: int, folder: Path) -> tuple[str, str]:
    """The words of a seed's query, and what is wrong; empty: nothing."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    verbs = random_verbs(chance)
    rows = [random_rows(chance, chance.choice((50, 300, 900))) for _ in range(inputs_of(verbs))]
    words = f"{' and '.join(str(len(each)) for each in rows)} rows, {', '.join(map(str, verbs))}"
    try:
        _run([batch_of(each, SCHEMA) for each in rows], verbs, folder, chance)
        published = ds.dataset(folder / "out", format="parquet").to_table().to_pylist()
        last = verbs[-1]
        found = spelled(last.settled(published) if isinstance(last, Top) else published)
        wanted = spelled(of_lists(verbs, rows))
        return words, "" if found == wanted else group_sizes(found, wanted)
    except Exception:  # noqa: BLE001 - no query may fail
        return words, traceback.format_exc()


def _run(rows: list[pa.RecordBatch], verbs: list[Verb], folder: Path, chance: random.Random) -> None:
    """In some runs at other widths, of which the last one comes to the end; tasks are killed in each."""
    for rate in (*(_SLOW,) * chance.randint(0, 2), 0.0):
        graph = _graph(rows, verbs, folder, [chance.choice(_WIDTHS) for _ in verbs], rate)
        with LocalQuery(graph, location(folder), settings=OFTEN, unaligned=chance.random() < 0.5) as query:
            query.start()
            for _ in range(chance.randint(0, 2)):
                if query.run(time.monotonic() + chance.uniform(0.0, 0.1)):
                    return
                query.kill(chance.choice(list(query.lines)))
            if rate == 0.0:
                query.run_through()
            elif query.run(time.monotonic() + chance.uniform(0.0, 0.1)):
                return


def _graph(rows: list[pa.RecordBatch], verbs: list[Verb], folder: Path, widths: list[int], rate: float) -> JobGraph:
    stream = of_streams(verbs, [_stream(each, number, rate) for number, each in enumerate(rows)], widths)
    return published_graph(stream, folder / "out")


def published_graph(stream: Stream, out: Path) -> JobGraph:
    """The job of a query into a folder."""
    sink = FolderSink(pafs.LocalFileSystem(), str(out), stream.schema, "query")
    return query_graph(in_mode(stream.branches, None), sink, OFTEN, _SLOTS, StreamingOptions("q", "query", ""))


def _stream(rows: pa.RecordBatch, number: int, rate: float) -> Stream:
    def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield rows.take(batch.column("value"))

    source = RateSource(rate, 1 + rows.num_rows % 2, rows.num_rows)
    step = SourceStep(source.name, source.schema, source, partitions=1, streaming=True, uid=f"source-{number}")
    return Stream((step,)).mapInArrow(numbered, SCHEMA).withWatermark("t", f"{DELAY} milliseconds")
