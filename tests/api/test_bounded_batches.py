# SPDX-License-Identifier: Apache-2.0
"""Batches of readers have at most 64 MB, whatever rows a file has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from penstock.api.bad_lines import BadLines
from penstock.api.delta import delta_source
from penstock.api.iceberg import iceberg_source
from penstock.api.json_lines import JsonLines
from penstock.api.line_files import LinesSource, pieces_of
from penstock.api.parquet import parquet_source
from penstock.api.paths import data_files
from penstock.record.row_sizes import LARGEST_BATCH
from penstock.stream.arriving_files import FilesSource
from penstock.stream.file_rows import ParquetFileFormat
from penstock.stream.partitioned_source import PartitionedSource

TEXT = "x" * 100_000
WIDE = pa.schema([(f"c{number}", pa.float64()) for number in range(200)])


def rows_of(form: str) -> pa.Table:
    """Large values, of which the last form has most in its last rows."""
    values = {"lists": [[TEXT]] * 700, "late": ["a"] * 9_300 + [TEXT] * 700}.get(form, [TEXT] * 700)
    return pa.table({"n": range(len(values)), "v": values})


class Given:
    """A user's source of one batch."""

    schema = pa.schema([("n", pa.int64()), ("v", pa.string())])

    def partitions(self) -> list[str]:
        """One."""
        return ["0"]

    def read(self, partition: str, offset: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
        """All at once."""
        (batch,) = rows_of("texts").cast(self.schema).to_batches()
        yield batch, 1


def batches_of(reader: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[pa.RecordBatch]:
    """What a reader gives of 700 values of 100 kB, or of 200,000 short lines with 200 columns."""
    path = folder / "f"
    if reader == "lines":
        path.write_text("{}\n" * 200_000)
        filesystem, files = data_files(path, "readJson")
        return LinesSource(filesystem, files, pieces_of(files), JsonLines(WIDE, bad=BadLines())).read(0, 1)
    if reader == "a user's":
        return PartitionedSource(Given()).read(0, 1)
    rows = rows_of(reader)
    if reader == "Iceberg":
        table = request.getfixturevalue("catalog").create_table("db.t", rows.schema)
        table.append(rows)
        return iceberg_source(table, None, None, [("n", ">=", 0)]).read(0, 1)
    if reader == "Delta":
        request.getfixturevalue("delta").write_deltalake(path, rows)
        return delta_source(path, None, None, None, None).read(0, 1)
    path.mkdir()
    pq.write_table(rows, path / "a.parquet", use_dictionary=reader == "stored once")
    if reader in ("arriving", "late"):
        return FilesSource(pafs.LocalFileSystem(), str(path), ParquetFileFormat(rows.schema)).read(0, 1)
    return parquet_source(path, None, pc.field("n") >= 0 if reader == "filtered" else None).read(0, 1)


READERS = ["texts", "lists", "stored once", "filtered", "arriving", "late", "Delta", "Iceberg", "lines", "a user's"]


@pytest.mark.parametrize("reader", READERS)
def test_batches_are_bounded_by_bytes(reader: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Of each reader, also where the file stores each value once, and where the large ones come last."""
    found = [(batch.num_rows, batch.nbytes) for batch in batches_of(reader, tmp_path, request)]
    assert sum(rows for rows, _ in found) == {"lines": 200_000, "late": 10_000}.get(reader, 700)
    assert max(size for _, size in found) <= LARGEST_BATCH == 64 << 20
