# SPDX-License-Identifier: Apache-2.0
"""Streaming queries over numbered rows with event times, in this process: how tests of event time run them."""

from __future__ import annotations

import random
import time
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
from timed_rows import TIMED, timed
from underway import listed

OFTEN = Settings.from_conf({"spark.penstock.streaming.watermarkInterval": "1ms"})


def rows(count: int | None, rate: float = 8000) -> Stream:
    """Rows with keys and times, of one task."""
    source = RateSource(rate, 1, count)
    step = SourceStep(source.name, source.schema, source, partitions=1, streaming=True)  # type: ignore[arg-type]
    return Stream((step,)).mapInArrow(timed, TIMED)


def graph_of(stream: Stream, folder: Path, mode: str | None = None) -> JobGraph:
    """The job of a query into a folder."""
    sink = FolderSink(pafs.LocalFileSystem(), str(folder / "out"), stream.schema, "query")
    return query_graph(in_mode(stream.branches, mode), sink, OFTEN, 8, StreamingOptions("q", "query", ""))


def published(folder: Path) -> pa.Table:
    """The rows that a plain reader sees, the oldest file first."""
    files = sorted(listed(folder / "out", "part-*"), key=lambda path: path.stat().st_mtime_ns)
    return pa.concat_tables([ds.dataset(path).to_table() for path in files])


def run_through(graph: JobGraph, folder: Path, chance: random.Random, *, unaligned: bool, kills: int) -> LocalQuery:
    """Run a query to its end, with tasks killed at random moments."""
    with LocalQuery(graph, location(folder), settings=OFTEN, unaligned=unaligned) as query:
        query.start()
        for _ in range(kills):
            if query.run(time.monotonic() + chance.uniform(0.05, 0.2)):
                break
            query.kill(chance.choice(list(query.lines)))
        query.run_through()
    return query
