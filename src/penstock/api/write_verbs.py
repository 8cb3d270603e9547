# SPDX-License-Identifier: Apache-2.0
"""The verbs of streams that run a job and write its rows: all of them are there afterwards, or none.

What writes is imported by the verb: few programs need all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api.delta import DeltaMode
    from penstock.api.file_sink import FilesWritten
    from penstock.api.writing import WritableStream


def writeParquet(
    self: WritableStream,
    path: str | Path,
    compression: str = "zstd",
    overwrite: bool = False,
    partitionBy: Sequence[str] = (),
) -> FilesWritten:
    """Run the job now and write its rows as Parquet files into a folder: all of them or none.

    `path` is a folder of this file system or any URI that `pyarrow.fs` knows. A folder that is there already is
    refused, or with `overwrite` replaced once the job has succeeded. The columns of `partitionBy` become names of
    folders, as in `year=2026/`, and are not in the files.
    """
    from penstock.api.file_sink import write_parquet

    return write_parquet(self, path, compression, overwrite, partitionBy)


def writeCsv(
    self: WritableStream,
    path: str | Path,
    header: bool = False,
    sep: str = ",",
    nullValue: str = "",
    compression: str = "none",
    overwrite: bool = False,
    partitionBy: Sequence[str] = (),
) -> FilesWritten:
    """Run the job now and write its rows as files of CSV, which PySpark reads as the same rows.

    `header` gives each file a first line with the names; `compression` is `none`, `gzip`, `bzip2` or `zstd`. All
    else is as for `writeParquet`.
    """
    from penstock.api.file_sink import write_csv

    return write_csv(self, path, (sep, nullValue, header), compression, overwrite, partitionBy)


def writeJson(
    self: WritableStream,
    path: str | Path,
    compression: str = "none",
    overwrite: bool = False,
    partitionBy: Sequence[str] = (),
) -> FilesWritten:
    """Run the job now and write its rows as files of JSON, one object on each line; all else as `writeCsv`."""
    from penstock.api.file_sink import write_json

    return write_json(self, path, compression, overwrite, partitionBy)


def writeDelta(
    self: WritableStream, path: str | Path, mode: DeltaMode = "error", partitionBy: Sequence[str] = ()
) -> FilesWritten:
    """Run the job now and write its rows into a Delta Lake table, by one commit: all of them or none.

    `mode` is `error` (a new table), `append` or `overwrite`. It needs the extra `delta`.
    """
    from penstock.api.delta import write_delta

    return write_delta(self, path, mode, partitionBy)


def writeIceberg(self: WritableStream, table: Any, overwrite: bool = False) -> FilesWritten:
    """Run the job now and append its rows to a table of pyiceberg's, or replace its rows: all of them or none.

    It needs the extra `iceberg`.
    """
    from penstock.api.iceberg import write_iceberg

    return write_iceberg(self, table, overwrite)
