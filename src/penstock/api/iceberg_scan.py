# SPDX-License-Identifier: Apache-2.0
"""The files of an Iceberg snapshot, read by tasks through the library `pyiceberg`.

The library brings each file to the snapshot's columns, by their numbers: with the deletes by positions, the values of
partitions, and the first values that the table says of columns that came later. Conditions on plain columns are given
to it: files in which no row fits, as their statistics say, are left out of the plan, and row groups while it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from types import FunctionType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.arrow_filters import Filter, all_of, columns_of, matching
from penstock.api.conditions import Condition
from penstock.api.parquet import RowGroup, shares
from penstock.operators.parquet_read import bounded_batches, ways_to_read
from penstock.operators.projection import Projection

_BATCH_ROWS = 1 << 17
"""As the library has it: each batch costs it some 0.2 ms."""


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
    where: tuple[Any, ...] = field(default=(), repr=False)
    """Conditions in the library's words: rows for which they do not hold may be left out."""

    def narrowed(self, conditions: Sequence[Condition]) -> IcebergScan:
        """The files in which rows may be for which conditions hold, of which the library leaves others out too."""
        from pyiceberg.expressions import AlwaysTrue, And
        from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator

        given = [found for each in conditions if (found := _predicate(each)) is not None]
        may_match = _InclusiveMetricsEvaluator(self.columns, And(AlwaysTrue(), AlwaysTrue(), *given))
        tasks = tuple(task for task in self.tasks if may_match.eval(task.file))
        return replace(self, tasks=tasks, where=(*self.where, *given))

    def rows(self, task: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """A file's rows, in the library's layouts."""
        from pyiceberg.expressions import AlwaysTrue, And
        from pyiceberg.io import pyarrow as library

        # One file at a time, batch by batch: the public way makes a list of all batches of a file first.
        is_local = urlsplit(task.file.file_path).scheme in ("", "file")
        deletes = library._read_all_delete_files(self.io, [task])  # noqa: SLF001
        for where in (And(AlwaysTrue(), AlwaysTrue(), *self.where), AlwaysTrue()):
            scan = library.ArrowScan(self.metadata, self.io, self.columns.select(*names), where)
            batches = _file_reading(is_local=is_local)(scan, [task], deletes)
            try:
                first = next(batches, None)
            except pa.ArrowNotImplementedError:
                if where is AlwaysTrue():
                    raise
                continue  # Arrow filters no views: such a file is read whole
            yield from [] if first is None else chain([first], batches)
            return


@lru_cache
def _file_reading(*, is_local: bool) -> Callable[..., Iterator[pa.RecordBatch]]:
    """The library's own way to read scan tasks, with `_Scanner` in place of Arrow's, which reads row groups whole."""
    from pyiceberg.io import pyarrow as library

    names = {**vars(library), "ds": SimpleNamespace(Scanner=_Scanners(is_local))}
    whole, one = library.ArrowScan._record_batches_from_scan_tasks_and_deletes, library._task_to_record_batches  # noqa: SLF001
    names[one.__name__] = FunctionType(one.__code__, names, argdefs=one.__defaults__)
    return FunctionType(whole.__code__, names)


@dataclass(frozen=True, slots=True)
class _Scanners:
    """Makes scanners, as `pyarrow.dataset.Scanner` does."""

    is_local: bool

    def from_fragment(self, fragment: Any, schema: pa.Schema, filter: Filter, columns: Sequence[str]) -> Any:  # noqa: A002
        """The scanner of a file; Arrow's reads what is no Parquet."""
        import pyarrow.dataset as ds

        if isinstance(fragment, ds.ParquetFileFragment):
            return _Scanner(fragment, schema, filter, columns, self.is_local)
        return ds.Scanner.from_fragment(fragment, schema=schema, filter=filter, columns=columns)


@dataclass(frozen=True, slots=True)
class _Scanner:
    """A file's rows in batches of bounded bytes."""

    fragment: Any
    schema: pa.Schema
    filter: Filter
    columns: Sequence[str]
    is_local: bool

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the row groups in which some may pass the filter; who reads them looks at each again."""
        import pyarrow.parquet as pq

        found = self.fragment if self.filter is None else self.fragment.subset(self.filter, schema=self.schema)
        groups = [group.id for group in found.row_groups]
        with pq.ParquetFile(self.fragment.open(), **ways_to_read(is_local=self.is_local)) as file:
            yield from bounded_batches(file, groups, self.columns, _BATCH_ROWS)


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

    def narrowed(self, columns: tuple[str, ...], conditions: Sequence[Condition]) -> IcebergSource:
        """The source of fewer columns, and of the rows for which conditions hold too."""
        # What the library leaves is looked at again: a null may be among it, where a file has a narrower type.
        return IcebergSource(self.scan.narrowed(conditions), self.whole, columns, all_of(self.filter, conditions))

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """This subtask's files, with the deletes that are theirs."""
        known = self.scan
        needed = {*self.columns, *(() if self.filter is None else columns_of(self.filter, self.whole))}
        held = pa.schema([each for each in self.whole if each.name in needed])
        projection = Projection(held, f"readIceberg: {known.title}", is_case_sensitive=True)
        for part in shares(self.parts, parallelism)[subtask]:
            for batch in known.rows(known.tasks[part.file], held.names):
                rows = projection.project(batch)
                if self.filter is not None:
                    yield from matching(rows, self.filter, self.columns)
                elif rows.num_rows:
                    yield rows.select(list(self.columns))


def _predicate(condition: Condition) -> Any | None:
    """A condition in the library's words; None where it is none of its own, or may mean another thing in a file."""
    from pyiceberg import expressions
    from pyiceberg.expressions.literals import literal

    kind, values = condition.values.type, condition.values
    known = pt.is_integer, pt.is_boolean, pt.is_string, pt.is_date32, pt.is_timestamp, pt.is_floating
    if "." in condition.column or not any(check(kind) for check in known):
        return None  # the library takes a dot for a field of a struct
    if pt.is_date32(kind) or pt.is_timestamp(kind):
        values = values.view(pa.int32() if pt.is_date32(kind) else pa.int64())
    constants = [literal(value) for value in values.to_pylist()]
    if pt.is_floating(kind) and any(float(np.float32(each.value)) != each.value for each in constants):
        return None  # in files of before a float was widened to a double it would be rounded
    if condition.test == "IsNotNull":
        return expressions.NotNull(condition.column)
    if condition.test == "In":
        return expressions.In(condition.column, constants)
    return getattr(expressions, condition.test)(condition.column, constants[0])
