# SPDX-License-Identifier: Apache-2.0
"""Folders of Parquet files by several writers, which differ as files of one table may: what was written is right.

Files lack columns, have them in another order or case, have narrower numbers, also inside structs and lists. With a
session Spark is among the writers, and reads them too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.parquet import parquet_source
from penstock.graph import fields_of, with_fields
from penstock_torture.tables.rows import Draw, differences, texts
from penstock_torture.tables.writers import written_by_others

COLUMNS = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.string()),
        ("d", pa.float64()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("y", pa.date32()),
        ("m", pa.decimal128(9, 2)),
        ("f", pa.bool_()),
        ("l", pa.list_(pa.string())),
        ("s", pa.struct([("x", pa.int64()), ("y", pa.string()), ("t", pa.timestamp("us", "UTC"))])),
        ("q", pa.list_(pa.struct([("x", pa.int64()), ("y", pa.date32())]))),
        ("p", pa.map_(pa.string(), pa.int64())),
    ]
)
_NARROWER = {pa.int64(): pa.int32(), pa.float64(): pa.float32(), pa.decimal128(9, 2): pa.decimal128(7, 2)}


class FolderHistory:
    """A folder to which files come; the first one's columns are those of all."""

    def __init__(self, folder: Path, seed: int, spark: Any = None) -> None:
        self._draw = Draw(seed)
        self._spark = spark
        self._folder = folder / f"f{seed}"
        self._folder.mkdir()
        self.told: list[str] = []

    def fill(self, steps: int) -> list[dict[str, Any]]:
        """Add files; the rows that were written."""
        written = [self._written(COLUMNS, 0)]
        written += [self._written(self._changed(), number) for number in range(1, steps + 1)]
        names = {name.lower(): name for name in written[0].column_names}
        own = pa.schema([COLUMNS.field(name) for name in names])
        rows = [
            {names[name.lower()]: value for name, value in row.items() if name.lower() in names}
            for table in written
            for row in table.to_pylist()
        ]
        found: list[dict[str, Any]] = pa.Table.from_pylist(rows, own).to_pylist()
        return found

    def run(self, steps: int) -> list[str]:
        """Add files; the ways in which our rows are not those that were written."""
        right = self.fill(steps)
        what = f"folder of {' '.join(self.told)}"
        wrong = differences(what, parquet_source(str(self._folder), None, None, self._spark), right, self._draw)
        if self._spark is not None:
            found = self._spark.read.parquet(str(self._folder)).toArrow().to_pylist()
            wrong += [] if texts(found) == texts(right) else [f"{what}: Spark reads {found} in place of {right}"]
        return wrong

    def _written(self, schema: pa.Schema, number: int) -> pa.Table:
        path = self._folder / f"{number:03}.parquet"
        name, rows = written_by_others(self._draw.table(schema), path, self._draw.random, self._spark)
        self.told.append(name)
        return rows

    def _changed(self) -> pa.Schema:
        draw = self._draw.random
        fields = [each for each in COLUMNS if draw.random() < 0.8] or [COLUMNS.field(0)]
        draw.shuffle(fields)
        if draw.random() < 0.5:
            fields = [each.with_type(self._narrower(each.type)) for each in fields]
        return pa.schema([each.with_name(each.name.upper()) if draw.random() < 0.1 else each for each in fields])

    def _narrower(self, kind: pa.DataType) -> pa.DataType:
        """The type with narrower numbers, and without some fields of structs."""
        inner = [each.with_type(self._narrower(each.type)) for each in fields_of(kind)]
        if pt.is_struct(kind) and self._draw.random.random() < 0.5:
            inner.pop(self._draw.random.randrange(1, len(inner)))
        return with_fields(kind, inner) if inner else _NARROWER.get(kind, kind)
