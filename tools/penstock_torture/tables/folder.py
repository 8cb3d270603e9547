# SPDX-License-Identifier: Apache-2.0
"""Folders of Parquet files by several writers, which differ as files of one table may: what was written is right.

With a session Spark reads them too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.parquet import parquet_source
from penstock_torture.tables.rows import Draw, differences, texts, written_by_others

_COLUMNS = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("d", pa.float64()),
        ("t", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.string())),
        ("s", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
_NARROWER = {pa.int64(): pa.int32(), pa.float64(): pa.float32()}


class FolderHistory:
    """A folder to which files come; the first one's columns are those of all."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._draw = Draw(seed)
        self._folder = folder / f"f{seed}"
        self._folder.mkdir()
        self.told: list[str] = []

    def run(self, steps: int, spark: Any = None) -> list[str]:
        """Add files; the ways in which our rows are not those that were written."""
        written = [self._written(_COLUMNS, 0)]
        written += [self._written(self._changed(), number) for number in range(1, steps + 1)]
        rows = [{name: row.get(name) for name in _COLUMNS.names} for table in written for row in table.to_pylist()]
        right = pa.Table.from_pylist(rows, _COLUMNS).to_pylist()
        what = f"folder of {' '.join(self.told)}"
        wrong = differences(what, parquet_source(str(self._folder), None, None, spark), right, self._draw)
        if spark is not None:
            found = spark.read.parquet(str(self._folder)).toArrow().to_pylist()
            wrong += [] if texts(found) == texts(rows) else [f"{what}: Spark reads {found} in place of {rows}"]
        return wrong

    def _written(self, schema: pa.Schema, number: int) -> pa.Table:
        rows = self._draw.table(schema)
        self.told.append(written_by_others(rows, self._folder / f"{number:03}.parquet", self._draw.random))
        return rows

    def _changed(self) -> pa.Schema:
        fields = [each for each in _COLUMNS if self._draw.random.random() < 0.8] or [_COLUMNS.field(0)]
        self._draw.random.shuffle(fields)
        narrow = self._draw.random.random() < 0.5
        return pa.schema(
            [each.with_type(_NARROWER.get(each.type, each.type) if narrow else each.type) for each in fields]
        )
