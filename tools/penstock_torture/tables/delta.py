# SPDX-License-Identifier: Apache-2.0
"""Histories of Delta tables, made by deltalake, by Polars through it, and by us."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.delta import delta_source, write_delta
from penstock.graph import as_nullable, plain_schema
from penstock.testing.sources import fromBatches
from penstock_torture.tables.rows import HERE, NAMES, Draw, differences

_KINDS = (
    pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2),
    pa.struct([("x", pa.int32()), ("y", pa.string())]), pa.list_(pa.string()),
)  # fmt: skip


class DeltaHistory:
    """A table that changes at random; what is drawn may be refused by the library, which changes nothing then."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._draw = Draw(seed)
        self._path = str(folder / f"t{seed}")
        self._schema = pa.schema([(name, self._draw.random.choice(_KINDS)) for name in "abc"])
        self._by: list[str] = []
        self.told: list[str] = []

    def run(self, steps: int) -> list[str]:
        """Write, then change and write in turns; the ways in which our rows are not the library's."""
        import deltalake

        self._replace()
        for _ in range(steps):
            changes = [self._drop, self._add, self._rename, self._swap, self._move, self._change, self._delete]
            for act in (self._draw.random.choice([*changes, self._partition, self._compact]), self._write):
                with suppress(deltalake.exceptions.DeltaError, pa.ArrowException, ValueError):
                    act()
                    self.told.append(act.__name__)
                self._schema, self._by = plain(self._table()), self._table().metadata().partition_columns
        wrong = []
        for version in (self._table().version(), self._draw.random.randint(0, self._table().version())):
            table = deltalake.DeltaTable(self._path, version=version)
            right = pa.table(table.to_pyarrow_table()).cast(plain(table)).to_pylist()
            source = delta_source(self._path, version, None, None, None)
            wrong += differences(f"version {version} after {' '.join(self.told)}", source, right, self._draw)
        return wrong

    def _table(self) -> Any:
        import deltalake

        return deltalake.DeltaTable(self._path)

    def _replace(self) -> None:
        import deltalake

        rows = self._draw.table(self._schema)
        deltalake.write_deltalake(
            self._path, rows, mode="overwrite", schema_mode="overwrite", partition_by=self._by or None
        )

    def _name(self) -> str:
        free = [name for name in NAMES if name not in self._schema.names]
        return self._draw.random.choice(free) if free else "w"

    def _place(self) -> int:
        """That of a column by which the table is not partitioned."""
        return self._draw.random.choice(
            [place for place, name in enumerate(self._schema.names) if name not in self._by]
        )

    def _drop(self) -> None:
        if len(self._schema) > 2:
            self._schema = self._schema.remove(self._place())
            self._replace()

    def _add(self) -> None:
        import deltalake

        self._schema = self._schema.append(pa.field(self._name(), self._draw.random.choice(_KINDS)))
        rows = self._draw.table(self._schema)
        deltalake.write_deltalake(self._path, rows, mode="append", schema_mode="merge", partition_by=self._by or None)

    def _rename(self) -> None:
        place = self._place()
        self._schema = self._schema.set(place, self._schema.field(place).with_name(self._name()))
        self._replace()

    def _swap(self) -> None:
        one, other = self._place(), self._place()
        fields = list(self._schema)
        names = fields[one].name, fields[other].name
        fields[one], fields[other] = fields[one].with_name(names[1]), fields[other].with_name(names[0])
        self._schema = pa.schema(fields)
        self._replace()

    def _move(self) -> None:
        fields = list(self._schema)
        fields.insert(0, fields.pop(self._place()))
        self._schema = pa.schema(fields)
        self._replace()

    def _change(self) -> None:
        place = self._place()
        self._schema = self._schema.set(place, self._schema.field(place).with_type(self._draw.random.choice(_KINDS)))
        self._replace()

    def _delete(self) -> None:
        self._table().delete(f"{self._schema.names[self._place()]} IS NULL")

    def _compact(self) -> None:
        self._table().optimize.compact()

    def _partition(self) -> None:
        name = self._schema.names[self._place()]
        nested = pa.types.is_nested(self._schema.field(name).type)
        self._by = [] if self._by or nested else [name]
        self._replace()

    def _write(self) -> None:
        self._draw.random.choice([self._append, self._ours, self._polars])()

    def _append(self) -> None:
        import deltalake

        rows = self._draw.table(self._schema)
        layouts = [pa.string_view(), pa.large_string(), pa.string()]
        kinds = [self._draw.random.choice(layouts) if kind == pa.string() else kind for kind in rows.schema.types]
        schema = pa.schema([field.with_type(kind) for field, kind in zip(rows.schema, kinds, strict=True)])
        deltalake.write_deltalake(self._path, rows.cast(schema), mode="append", partition_by=self._by or None)

    def _polars(self) -> None:
        import polars as pl

        found = pl.from_arrow(self._draw.table(self._schema))
        assert isinstance(found, pl.DataFrame)  # noqa: S101 - for the type checker
        found.write_delta(self._path, mode="append")

    def _ours(self) -> None:
        rows = self._draw.table(plain(self._table()))
        mode = "overwrite" if self._draw.random.random() < 0.2 else "append"
        write_delta(fromBatches(rows, spark=HERE), self._path, mode, self._by)


def plain(table: Any) -> pa.Schema:
    """The table's columns in Spark's layouts."""
    return as_nullable(plain_schema(pa.schema(table.schema().to_arrow()).remove_metadata()))
