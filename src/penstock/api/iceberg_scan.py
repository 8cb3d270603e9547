# SPDX-License-Identifier: Apache-2.0
"""The files of an Iceberg snapshot, read by tasks through the library `pyiceberg`.

The library brings each file to the snapshot's columns, by their numbers: with the deletes by positions, the values of
partitions, and the first values that the table says of columns that came later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.api.parquet import Filter, RowGroup, columns_of, matching, shares
from penstock.operators.projection import Projection


@dataclass(frozen=True, slots=True)
class IcebergScan:
    """A snapshot as the library knows it: its files, and all that tells what is in them."""

    title: str
    metadata: Any = field(repr=False)
    """The table's, without its snapshots."""
    io: Any = field(repr=False)
    columns: Any = field(repr=False)
    """The snapshot's columns, in the library's words."""
    tasks: tuple[Any, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class IcebergSource:
    """Reads its share of a scan's files, each by the library, which finds columns by their numbers; picklable.

    `whole` has all columns of the snapshot. Rows for which `filter` is false are left out.
    """

    scan: IcebergScan
    whole: pa.Schema
    columns: tuple[str, ...]
    filter: Filter = None

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return pa.schema([self.whole.field(name) for name in self.columns])

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"iceberg {self.scan.title}"

    @property
    def parts(self) -> list[RowGroup]:
        """The files: each is read by one task."""
        files = [task.file for task in self.scan.tasks]
        return [RowGroup(at, 0, file.record_count, file.file_size_in_bytes) for at, file in enumerate(files)]

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """This subtask's files, with the deletes that are theirs."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io import pyarrow as library

        known = self.scan
        needed = {*self.columns, *(() if self.filter is None else columns_of(self.filter, self.whole))}
        held = pa.schema([each for each in self.whole if each.name in needed])
        scan = library.ArrowScan(known.metadata, known.io, known.columns.select(*held.names), AlwaysTrue())
        projection = Projection(held, f"readIceberg: {known.title}", is_case_sensitive=True)
        for part in shares(self.parts, parallelism)[subtask]:
            task = known.tasks[part.file]
            # One file at a time, batch by batch: the public way makes a list of all batches of a file first.
            deletes = library._read_all_delete_files(known.io, [task])  # noqa: SLF001
            for batch in scan._record_batches_from_scan_tasks_and_deletes([task], deletes):  # noqa: SLF001
                rows = projection.project(batch)
                if self.filter is not None:
                    yield from matching(rows, self.filter, self.columns)
                elif rows.num_rows:
                    yield rows.select(list(self.columns))
