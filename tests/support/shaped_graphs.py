# SPDX-License-Identifier: Apache-2.0
"""Plans of queries of random shapes, for runs in this process."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.fs as pafs

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.writer import query_graph
from penstock.graph import JobGraph
from penstock.graph.streaming import StreamingOptions
from penstock.settings import Settings
from penstock.stream.folder_sink import FolderSink
from penstock.stream.rate import RateSource
from penstock_torture.local_query import location
from query_shapes import PARTITIONS, WIDTHS, QueryShape

ROWS = 2000
PER_SECOND = 15_000
MOST_TASKS = 12


def graph_of(shape: QueryShape, folder: Path, rows: int | None, chance: random.Random) -> JobGraph:
    """The plan with numbers of tasks that chance says."""
    widths = shape.widths(chance, MOST_TASKS)
    source = RateSource(PER_SECOND, PARTITIONS, rows)
    left = (MOST_TASKS - sum(widths)) // shape.sources
    tasks = chance.choice([width for width in WIDTHS if width <= max(1, left)])
    step = SourceStep(source.name, source.schema, source, partitions=tasks, streaming=True)  # type: ignore[arg-type]
    stream = shape.stream([Stream((step,)) for _ in range(shape.sources)], widths)
    sink = FolderSink(pafs.LocalFileSystem(), str(folder / "out"), stream.schema, "query")
    options = StreamingOptions("q", "query", location(folder))
    return query_graph(stream.branches, sink, Settings(), MOST_TASKS + 1, options)
