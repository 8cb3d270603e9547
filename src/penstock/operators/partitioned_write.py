# SPDX-License-Identifier: Apache-2.0
"""Writes a subtask's rows as Parquet files into folders named by the values of some columns, `year=2026/word=a/`.

Those columns are in the names, not in the files; null and the empty string are `__HIVE_DEFAULT_PARTITION__`, and
signs that file systems mind are written `%3A`, as Spark has it. A task holds up to 128 MiB of rows by folder; then
each folder gets a file, which is closed, so neither memory nor open files grow with the number of folders.

When not to use it: for columns with very many values; a file for each of them and task is slow to write and to read.
Key the stream by the columns first to have each folder written by one task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.file_write import PartWriter, WriteFiles
from penstock.operators.keys import group_rows, int64_array, stable_order
from penstock.record.layout import take_batch

NOTHING = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(1, 32)}


@dataclass(frozen=True, slots=True)
class WritePartitioned:
    """As `WriteFiles`, whose schema lacks the `keys`, into a folder for each combination of their values."""

    write: WriteFiles
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"{self.write.name} by {', '.join(self.keys)}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The row of each file."""
        held: dict[str, list[pa.RecordBatch]] = {}
        size = 0
        for batch in batches:
            for folder, own in by_folder(batch, self.keys, self.write.schema.names):
                rows = self.write.labelled(own)
                held.setdefault(folder, []).append(rows)
                size += rows.nbytes
            if size >= self.write.group_bytes:
                yield from self._written(held)
                held, size = {}, 0
        yield from self._written(held)

    def _written(self, held: dict[str, list[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        for folder, batches in held.items():
            file = PartWriter(self.write, folder)
            try:
                file.write(pa.Table.from_batches(batches, self.write.schema))
            except BaseException:
                file.abort()
                raise
            yield file.finish()


def by_folder(
    batch: pa.RecordBatch, keys: Sequence[str], kept: Sequence[str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The folders that the rows of a batch belong to, each with the columns of its rows that are kept."""
    groups = group_rows([batch.column(key) for key in keys], batch.num_rows)
    folders = folder_names(keys, groups.keys)
    rows = take_batch(batch.select(list(kept)), int64_array(stable_order(groups.codes, groups.count)))
    start = 0
    for folder, count in zip(folders, np.bincount(groups.codes, minlength=groups.count).tolist(), strict=True):
        yield folder, rows.slice(start, count)
        start += count


def folder_names(keys: Sequence[str], values: Sequence[pa.Array]) -> list[str]:
    """The folder of each combination of values."""
    # One statement for each folder, not for each row.
    texts = [column.cast(pa.string()).to_pylist() for column in values]
    return [
        "/".join(f"{_escaped(key)}={_escaped(value) or NOTHING}" for key, value in zip(keys, row, strict=True))
        for row in zip(*texts, strict=True)
    ]


def _escaped(text: str | None) -> str:
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED else sign for sign in text or "")
