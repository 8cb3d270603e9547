# SPDX-License-Identifier: Apache-2.0
"""A query from the files of a folder on a mount that drops into files of another folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from dropping_mount import Mount
from penstock.api.line_formats import TEXT_SCHEMA, TextLines
from penstock.errors import OutsideError, ProducerFailedError, TaskCancelledError
from penstock.graph import JobGraph
from penstock.record import PartitionerSpec
from penstock.stream.arriving_files import FilesSource
from penstock.stream.file_rows import LineFileFormat
from penstock.stream.folder_sink import FolderSink
from penstock.stream.sinks import SinkOperator
from penstock_torture.local_query import linear_graph
from underway import listed

EXPECTED = (OutsideError, TaskCancelledError, ProducerFailedError)
"""The errors that the mount and kills lead to."""


def graph(folder: Path, mount: Mount, width: int) -> JobGraph:
    """The rows of `in` into files of `out`."""
    (folder / "in").mkdir(exist_ok=True)
    source = FilesSource(
        pafs.PyFileSystem(mount), str(folder / "in"), LineFileFormat(TextLines()), listing_seconds=0.005
    )
    sink = SinkOperator(FolderSink(pafs.LocalFileSystem(), str(folder / "out"), TEXT_SCHEMA, "q"))
    stages = [(width, (), TEXT_SCHEMA, None), (1, (sink,), TEXT_SCHEMA, PartitionerSpec("rebalance"))]
    return linear_graph(source, stages)


def rows_in(folder: Path) -> list[str]:
    """The rows that a reader of `out` sees."""
    files = listed(folder / "out", "part-*")
    table = ds.dataset([str(file) for file in files], TEXT_SCHEMA).to_table() if files else pa.table({"value": []})
    found: list[str] = table["value"].to_pylist()
    return found
