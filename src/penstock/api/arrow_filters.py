# SPDX-License-Identifier: Apache-2.0
"""Filters of readers, as Arrow's expressions: made, put together, and applied to batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa

from penstock.api.conditions import Condition
from penstock.errors import SchemaError

Filter = Any
"""A `pyarrow.compute.Expression`, or the list of tuples that `pyarrow.parquet` takes."""


def matching(batch: pa.RecordBatch, where: Filter, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows for which a filter is true, if there are any, with some of their columns."""
    passes = _truth(batch, where)
    kept = batch.select(list(columns))
    if passes.true_count < len(passes):
        kept = kept.filter(passes)
    if kept.num_rows:
        yield kept


def _truth(batch: pa.RecordBatch, where: Filter) -> pa.BooleanArray:
    """A filter's value for each row.

    Arrow's own filter of a table copies all rows also where all of them pass, and passes them to its threads.
    """
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
    plan = acero.Declaration("project", acero.ProjectNodeOptions([where], ["passes"]), [source])
    return plan.to_table(use_threads=False).column(0).combine_chunks()


def all_of(where: Filter, conditions: Sequence[Condition]) -> Filter:
    """A filter and conditions as one filter; None where there are none."""
    import pyarrow.compute as pc

    parts = [*([] if where is None else [where]), *(each.expression for each in conditions)]
    return reduce(pc.and_kleene, parts) if parts else None


def refuse_places(where: Filter, verb: str) -> None:
    """Raise SchemaError for columns that are meant by their places: a task that reads fewer has others there.

    Places within a struct stay what they are.
    """
    if found := re.search(r"(?<!FieldRef\.)FieldPath\(\d+\)", re.sub(r'"(\\.|[^"\\])*"', "", str(where))):
        raise SchemaError(f"{verb}: {where} means a column by its place, {found[0]}: name it, as in pc.field('name')")


def columns_of(where: Filter, schema: pa.Schema) -> set[str]:
    """The columns that a filter needs: those without which it does not fit."""
    return {
        name
        for place, name in enumerate(schema.names)
        if not _fits(where, pa.schema([field for other, field in enumerate(schema) if other != place]))
    }


def _fits(where: Filter, schema: pa.Schema) -> bool:
    import pyarrow.dataset as ds

    try:
        ds.dataset(schema.empty_table()).scanner(filter=where)
    except (pa.ArrowException, ValueError, TypeError):
        return False
    return True


def filter_expression(where: Filter, schema: pa.Schema) -> Filter:
    """A filter in the form that Arrow takes; raises SchemaError where it does not fit the columns."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    try:
        expression = where if isinstance(where, pc.Expression) else pq.filters_to_expression(where)
        ds.dataset(schema.empty_table()).scanner(filter=expression)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise SchemaError(f"readParquet: the filter does not fit the columns ({error})") from error
    refuse_places(expression, "readParquet")
    return expression
