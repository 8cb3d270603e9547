# SPDX-License-Identifier: Apache-2.0
"""The aggregations of groups, whatever makes the groups: keys, or windows and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.api.grouping import aggregated, plain_aggregations
from penstock.api.known_arguments import suggests_arguments
from penstock.operators.aggregates import Aggregation

if TYPE_CHECKING:
    from penstock.api.stream import Stream
    from penstock.spark.user_types import Column


@suggests_arguments
class GroupVerbs:
    """The base of streams by groups: each adds the rows ahead of its exchange, its keys, and how it reduces one."""

    __slots__ = ()

    def _ungrouped(self) -> tuple[Stream, tuple[str, ...]]:
        """The rows, and the columns that they are grouped by."""
        raise NotImplementedError

    def _reduced(self, rows: Stream, wanted: Sequence[Aggregation]) -> Stream:
        """One row for each group of these rows, which may have more columns than the stream's own."""
        raise NotImplementedError

    def agg(self, *exprs: str | Column | Mapping[str, str], **aggregations: tuple[str, str] | Column) -> Stream:
        """Aggregate each group: `agg(n=("word", "count"), total=("price", "sum"))`.

        Also PySpark's forms: `agg({"price": "sum"})`, `agg(F.sum("price").alias("total"))`, or that as SQL. Partial
        results are made before the exchange and merged after it. `("*", "count")` counts rows. A sum that leaves its
        type is an error where `spark.sql.ansi.enabled` is on now, as in Spark.
        """
        rows, _ = self._ungrouped()
        wanted = aggregated(rows.schema, rows.session, exprs, aggregations)
        return self._reduced(rows if wanted.inputs is None else rows.projected(wanted.inputs), wanted.aggregations)

    def count(self) -> Stream:
        """The number of rows of each group, as column `count`; lazy, as PySpark's `groupBy(...).count()`."""
        return self.agg(count=("*", "count"))

    def sum(self, *cols: str) -> Stream:
        """The sum of each column, by default of all numeric ones, named `sum(v)`; likewise the verbs below."""
        return self._each("sum", cols)

    def avg(self, *cols: str) -> Stream:
        """The mean of each column."""
        return self._each("avg", cols)

    mean = avg

    def min(self, *cols: str) -> Stream:
        """The least value of each column."""
        return self._each("min", cols)

    def max(self, *cols: str) -> Stream:
        """The greatest value of each column."""
        return self._each("max", cols)

    def _each(self, function: str, cols: tuple[str, ...]) -> Stream:
        rows, keys = self._ungrouped()
        return self._reduced(rows, plain_aggregations(rows.schema, keys, function, cols))
