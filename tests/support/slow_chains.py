# SPDX-License-Identifier: Apache-2.0
"""Queries whose last operator is slow, so that rows queue up in front of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from keyed_rows import KEYED, keyed
from penstock.graph import JobGraph, Operator
from penstock.operators.functions import MapInArrow
from penstock.record import PartitionerSpec
from penstock.stream.folder_sink import FolderSink
from penstock.stream.rate import RateSource
from penstock.stream.sinks import SinkOperator
from penstock_torture.local_query import linear_graph

ROWS = 6000
PER_SECOND = 20_000


def slow(seconds: float) -> Operator:
    """An operator that is busy for so long with each row, so that rows queue up in front of it."""

    def busy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            until = time.monotonic() + seconds * batch.num_rows
            while time.monotonic() < until:
                time.sleep(seconds)  # what takes long, without the interpreter for itself
            yield batch

    return MapInArrow(busy, KEYED)


def files(folder: Path) -> SinkOperator:
    """A sink of files below a folder."""
    return SinkOperator(FolderSink(pafs.LocalFileSystem(), str(folder / "out"), KEYED, "query"))


def values_in(folder: Path) -> list[int]:
    """The values that a plain reader sees."""
    found: list[dict[str, Any]] = ds.dataset(folder / "out", format="parquet").to_table().to_pylist()
    return [row["value"] for row in found]


def chain(folder: Path, exchanges: list[PartitionerSpec], pause: float, rows: int | None = ROWS) -> JobGraph:
    """Two sources, stages after these exchanges, the last one slow."""
    stages: list[tuple[int, tuple[Operator, ...], pa.Schema, PartitionerSpec | None]] = [
        (2, (MapInArrow(keyed, KEYED),), KEYED, None)
    ]
    stages += [(2, (), KEYED, exchange) for exchange in exchanges[:-1]]
    stages.append((2, (slow(pause), files(folder)), KEYED, exchanges[-1]))
    return linear_graph(RateSource(PER_SECOND, 2, rows), stages)
