# SPDX-License-Identifier: Apache-2.0
"""The forms of the files that jobs and queries write: Parquet, Arrow, CSV, JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from penstock.operators.csv_write import PLAIN_CSV, CsvSigns, csv_header, csv_lines
from penstock.operators.json_write import json_lines
from penstock.operators.parquet_write import ParquetFileWriter

LINE_CODECS: Final = {"none": "", "gzip": ".gz", "bzip2": ".bz2", "zstd": ".zst"}
"""Spark's names, and the endings of files: Arrow packs and unpacks by them."""


@dataclass(frozen=True, slots=True)
class FileForm:
    """The form of files: "parquet" with a `compression`, "arrow", "csv" or "json"; all may be null in `schema`.

    Files of lines are compressed as a whole, by the ending of their names (`LINE_CODECS`).
    """

    format: str
    schema: pa.Schema
    compression: str = "snappy"
    csv: CsvSigns = PLAIN_CSV

    def open(self, stream: Any) -> TableWriter:
        """A file in a stream."""
        return FORMS[self.format](stream, self)

    @property
    def ending(self) -> str:
        """The end of a file's name."""
        return f".{self.format}{LINE_CODECS[self.compression] if self.format in ('csv', 'json') else ''}"


class TableWriter(Protocol):
    """A file under way."""

    def write_table(self, table: pa.Table) -> None:
        """Write rows."""

    def close(self) -> None:
        """End it; the stream stays open."""


def _parquet(stream: Any, form: FileForm) -> TableWriter:
    return ParquetFileWriter(stream, form.schema, form.compression)


def _arrow(stream: Any, form: FileForm) -> TableWriter:
    made: TableWriter = pa.ipc.new_file(stream, form.schema)
    return made


class _Lines:
    """A file of lines."""

    def __init__(self, stream: Any, lines: Callable[[pa.RecordBatch], pa.Buffer], first: bytes = b"") -> None:
        self._stream = stream
        self._lines = lines
        if first:
            stream.write(first)

    def write_table(self, table: pa.Table) -> None:
        """Batch by batch."""
        for batch in table.to_batches():
            self._stream.write(self._lines(batch))

    def close(self) -> None:
        """Nothing ends it but the end of its stream."""


def _csv(stream: Any, form: FileForm) -> TableWriter:
    first = csv_header(form.schema, form.csv) if form.csv.header else b""
    return _Lines(stream, lambda batch: csv_lines(batch, form.csv), first)


def _json(stream: Any, _: FileForm) -> TableWriter:
    return _Lines(stream, json_lines)


FORMS: dict[str, Callable[[Any, FileForm], TableWriter]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "json": _json,
}
