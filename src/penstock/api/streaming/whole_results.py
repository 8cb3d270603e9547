# SPDX-License-Identifier: Apache-2.0
"""`outputMode("complete")`: the whole result of an aggregation, out of the rows that say which groups have changed.

The tasks write what they write in `update`, of each group the last row of an epoch. The driver holds the newest row
of each group, for `memory` to show and `console` to print. A Delta table is merged by the groups' columns: it has all
of them in each version, and no task holds them.

Limits: a result of more than `completeRows` groups ends the query where the driver holds it. As with any reader of
the files, a look while a checkpoint is being published may have some groups of it and not others yet.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.api.lineage import OperatorStep, Step
from penstock.errors import PenstockError, PlanError
from penstock.operators.expressions import ColumnRef
from penstock.operators.keys import refuse_ungroupable
from penstock.operators.verbs import Project
from penstock.stream.last_rows import LastRows

COMPLETE_ROWS = "completeRows"
MOST_ROWS = 100_000
WHOLE_SINKS = ("console", "delta", "memory")
_EPOCH = re.compile(r"part-.*-e(\d+)-[0-9a-f]{16}\.parquet")


def refuse_sink(name: str, keys: tuple[str, ...]) -> None:
    """Raise PlanError for a sink that gets no whole results."""
    if name not in WHOLE_SINKS:
        raise PlanError(
            f"outputMode('complete') goes with {', '.join(WHOLE_SINKS)}, and not with {name}, which would get every"
            " group again with each checkpoint. Say outputMode('update'): the newest row of a group counts, which"
            " latestRows reads from files of option('keyColumns', ...)"
        )
    if name == "delta" and not keys:
        raise PlanError(
            "outputMode('complete') of an aggregation of all rows has no columns to merge a Delta table by: group by"
            " one, withColumn('all', '1') and groupBy('all')"
        )


def group_columns(branches: tuple[Step, ...]) -> tuple[str, ...]:
    """The columns that name the groups of a query's result; raises PlanError where its rows are no such result."""
    from penstock.stream.aggregate import KeyedAggregate

    step, names = branches[0], dict(zip(branches[0].schema.names, branches[0].schema.names, strict=True))
    while isinstance(step, OperatorStep) and isinstance(step.operator, Project):
        names = _before(step.operator, names)
        step = step.parent
    if len(branches) > 1 or not isinstance(step, OperatorStep) or not isinstance(step.operator, KeyedAggregate):
        raise PlanError(
            "outputMode('complete') needs an aggregation by keys as the last step, select and withColumn apart"
            " (PySpark's STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION where there is none): say outputMode('update'),"
            " or filter, join and group by windows in the program that reads the result"
        )
    given = {before: name for name, before in names.items()}
    missing = [key for key in step.operator.keys if key not in given]
    if missing:
        raise PlanError(
            f"outputMode('complete'): the rows have no column {missing[0]!r} any more, which tells groups apart: keep"
            " it in select"
        )
    keys = tuple(given[key] for key in step.operator.keys)
    refuse_ungroupable(branches[0].schema, keys)
    return keys


def _before(project: Project, names: dict[str, str]) -> dict[str, str]:
    """The names that columns have in front of a projection, by those that they have in the end."""
    found = dict(zip(project.schema.names, project.expressions, strict=True))
    return {name: expression.name for name, at in names.items() if isinstance(expression := found[at], ColumnRef)}


class WholeResult:
    """The newest row of each group in a folder's files, whose names have their epochs."""

    def __init__(self, folder: str, schema: pa.Schema, keys: tuple[str, ...], most: int) -> None:
        self._folder = Path(folder)
        self._schema = schema
        self._keys = keys
        self._most = most
        self._seen: set[str] = set()
        self._rows = pa.table({field.name: pa.array([], field.type) for field in schema}, schema)
        self.failure: PenstockError | None = None
        """Why it looks no more: the result is too large."""

    def look(self) -> pa.Table | None:
        """The result, if there are files that were not there before."""
        fresh = [path for path in self._folder.glob("part-*.parquet") if path.name not in self._seen]
        if not fresh or self.failure is not None:
            return None
        self._seen.update(path.name for path in fresh)
        tables = [self._rows, *(pq.read_table(path, schema=self._schema) for path in sorted(fresh, key=_epoch))]
        self._rows = self._newest(pa.concat_tables(tables))
        if self._rows.num_rows > self._most:
            self.failure = PlanError(
                f"outputMode('complete'): the result has {self._rows.num_rows} groups, and the driver holds"
                f" {self._most}: allow it more with option('{COMPLETE_ROWS}', ...), write a Delta table, or say"
                " outputMode('update')"
            )
        return self._rows

    def _newest(self, rows: pa.Table) -> pa.Table:
        if not self._keys:
            return rows.slice(max(0, rows.num_rows - 1))
        last = LastRows(self._keys)
        for batch in rows.to_batches():
            last.add(batch)
        return pa.Table.from_batches(last.take(), self._schema)


def _epoch(path: Path) -> int:
    found = _EPOCH.fullmatch(path.name)
    return 0 if found is None else int(found[1])
