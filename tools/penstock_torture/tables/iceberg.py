# SPDX-License-Identifier: Apache-2.0
"""Histories of Iceberg tables, made by pyiceberg; files of others come in by its `add_files`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.iceberg import iceberg_source, plain_rows, write_iceberg
from penstock.testing.sources import fromBatches
from penstock_torture.tables.rows import HERE, NAMES, Draw, differences
from penstock_torture.tables.writers import written_by_others

_COLUMNS = pa.schema(
    [
        ("a", pa.int32()),
        ("b", pa.string()),
        ("c", pa.float32()),
        ("d", pa.date32()),
        ("m", pa.decimal128(9, 2)),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("l", pa.list_(pa.struct([("x", pa.string()), ("z", pa.int32())]))),
    ]
)


class IcebergHistory:
    """A table that changes at random; what is drawn may be refused by the library, which changes nothing then."""

    def __init__(self, catalog: Any, folder: Path, seed: int) -> None:
        self._draw = Draw(seed)
        self._folder = folder
        self._files = 0
        self.table = catalog.create_table(f"db.t{seed}", _COLUMNS)
        self.told: list[str] = []

    def run(self, steps: int) -> list[str]:
        """Write, then change and write in turns; the ways in which our rows are not the library's."""
        from pyiceberg.exceptions import ResolveError, ValidationError

        self._append()
        first = self.table.current_snapshot().snapshot_id
        for _ in range(steps):
            changes = [self._drop, self._add, self._rename, self._swap, self._move, self._widen, self._delete]
            for act in (self._draw.random.choice([*changes, self._partition]), self._write):
                try:
                    act()
                    self.told.append(act.__name__)
                except (ValueError, KeyError, ValidationError, ResolveError, NotImplementedError, pa.ArrowException):
                    self.table.refresh()
        scans = {"now": None, "first": first}
        return [
            one
            for what, snapshot in scans.items()
            for one in differences(
                f"{what} after {' '.join(self.told)}",
                iceberg_source(self.table, snapshot, None, None),
                self._right(snapshot),
                self._draw,
            )
        ]

    def _right(self, snapshot: int | None) -> list[dict[str, Any]] | None:
        """The library's rows; None where it refuses to read them."""
        from pyiceberg.exceptions import ResolveError
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        scan = self.table.scan(snapshot_id=snapshot)
        try:
            reading = ArrowScan(self.table.metadata, self.table.io, scan.projection(), AlwaysTrue())
            # Not as one table: batches of several writers have layouts that Arrow does not put together.
            batches = list(reading.to_record_batches(scan.plan_files()))
        except (ValueError, ResolveError, pa.ArrowException):
            return None
        return [row for batch in batches for row in batch.to_pylist()]

    def _column(self) -> str:
        names = self.table.schema().column_names
        found: str = self._draw.random.choice([name for name in names if not name.endswith((".element", ".key"))])
        return found

    def _drop(self) -> None:
        with self.table.update_schema(allow_incompatible_changes=True) as change:
            change.delete_column(self._column())

    def _add(self) -> None:
        from pyiceberg.types import DoubleType, IntegerType, StringType

        under = self._draw.random.choice([(), ("s",), ("l",)])
        kind = self._draw.random.choice([IntegerType(), StringType(), DoubleType()])
        with self.table.update_schema() as change:
            change.add_column((*under, self._draw.random.choice(NAMES)), kind)

    def _rename(self) -> None:
        with self.table.update_schema() as change:
            change.rename_column(self._column(), self._draw.random.choice(NAMES))

    def _swap(self) -> None:
        one, other = self._draw.random.sample([each.name for each in self.table.schema().columns], 2)
        for old, new in ((one, "t"), (other, one), ("t", other)):
            with self.table.update_schema() as change:
                change.rename_column(old, new)

    def _move(self) -> None:
        with self.table.update_schema() as change:
            change.move_first(self._column())

    def _widen(self) -> None:
        from pyiceberg.types import DecimalType, DoubleType, LongType

        kind = self._draw.random.choice([LongType(), DoubleType(), DecimalType(18, 2)])
        with self.table.update_schema() as change:
            change.update_column(self._column(), kind)

    def _delete(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where no row is deleted
            self.table.delete(f"{self._draw.random.choice(self.table.schema().columns).name} IS NULL")

    def _partition(self) -> None:
        from pyiceberg.transforms import IdentityTransform

        known = [each.name for each in self.table.spec().fields]
        with self.table.update_spec() as change:
            if known:
                change.remove_field(self._draw.random.choice(known))
            else:
                change.add_field(self._column(), IdentityTransform())

    def _write(self) -> None:
        self._draw.random.choice([self._append, self._append, self._ours, self._others])()

    def _append(self) -> None:
        self.table.append(self._draw.table(self.table.schema().as_arrow()))

    def _ours(self) -> None:
        if not self.table.spec().fields:
            rows = self._draw.table(plain_rows(self.table.schema()))
            write_iceberg(fromBatches(rows, spark=HERE), self.table, overwrite=self._draw.random.random() < 0.2)
            self.table.refresh()

    def _others(self) -> None:
        self._files += 1
        path = self._folder / f"{self._files}.parquet"
        rows = self._draw.table(plain_rows(self.table.schema()))
        self.told.append(written_by_others(rows, path, self._draw.random)[0])
        self.table.add_files([f"file://{path}"])
