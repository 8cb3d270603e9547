# SPDX-License-Identifier: Apache-2.0
"""KeyedStream: a stream after an exchange by key, with the verbs of groups. Immutable and lazy, as every stream.

Its own exchange is used by the verbs that take rows as they are; aggregations put a part of their work before it, and
combinations put the exchange of each side before the task that joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from penstock.api.group_verbs import GroupVerbs
from penstock.api.known_arguments import suggests_arguments
from penstock.api.lineage import CombineInput, ExchangeChoice, ExchangeStep
from penstock.api.narrow import chosen, rows_argument
from penstock.api.pairs import CoGroupedStream, joined
from penstock.api.schemas import column_arguments, function_argument, schema_argument
from penstock.api.stateful import Modes, stateful_operator
from penstock.api.stream import Stream
from penstock.api.streaming.refusals import is_streaming
from penstock.errors import PlanError
from penstock.operators.aggregate_operators import aggregate_pair
from penstock.operators.aggregates import Aggregation
from penstock.operators.exchanges import PartitionerSpec
from penstock.operators.frames import refuse_objects, require_pandas
from penstock.operators.functions import GroupApply, GroupApplyInArrow, GroupApplyInPandas, group_form
from penstock.operators.keys import refuse_ungroupable

if TYPE_CHECKING:
    from penstock.spark.user_types import Schema


@suggests_arguments
class KeyedStream(GroupVerbs, Stream):  # type: ignore[misc]  # count() is of groups here, as in PySpark
    """A stream after an exchange by key: aggregations and functions over groups."""

    __slots__ = ("_choice", "_keys", "_spec", "_upstream")

    def __init__(
        self, upstream: Stream, keys: tuple[str, ...], spec: PartitionerSpec, choice: ExchangeChoice
    ) -> None:
        super().__init__((ExchangeStep(upstream.branches, spec, choice),), upstream.session)
        self._upstream = upstream
        self._keys = keys
        self._spec = spec
        self._choice = choice

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns; none where all rows are one group."""
        return self._keys

    @property
    def upstream(self) -> Stream:
        """The stream in front of the exchange."""
        return self._upstream

    @property
    def partitions(self) -> int | None:
        """The number of partitions that was asked for."""
        return self._choice.partitions

    def input(self) -> CombineInput:
        """This stream as one side of a combination: what is ahead of its exchange, and the exchange."""
        return CombineInput(self._upstream.branches, self._spec, self._choice)

    def persist(self, name: str = "", service: str = "") -> Self:
        """As `Stream.persist`, of the rows ahead of the exchange, which each verb after it sends in its own way."""
        self._upstream.persist(name, service)
        return self

    def unpersist(self) -> Self:
        """Undo `persist`."""
        self._upstream.unpersist()
        return self

    def reduced(self, wanted: Sequence[Aggregation]) -> Stream:
        """Each group as one row: its key and these aggregates of it, of which there may be none.

        Of a stream without an end: each group anew whenever rows of it have come.
        """
        upstream = self._upstream
        if is_streaming(self.branches):
            from penstock.stream.aggregate import KeyedAggregate

            kept = KeyedAggregate(upstream.schema, self._keys, tuple(wanted), self.is_ansi())
            found = kept.result_schema
            rows = self._with_columns_of(wanted)
            return rows.applied(replace(kept, schema=rows.schema), found)
        partial, final, plan = aggregate_pair(upstream.schema, self._keys, wanted, ansi=self.is_ansi())
        before = upstream.applied(partial, plan.state_schema)
        return before.exchanged(self._spec, self._choice).applied(final, plan.result_schema)

    def _with_columns_of(self, wanted: Sequence[Aggregation]) -> KeyedStream:
        """This stream with its keys and what these aggregations read: the other columns need not be sent."""
        schema = self.schema
        needed = {*self._keys, *(item.column for item in wanted)}
        names = [name for name in schema.names if name in needed] or schema.names[:1]
        if len(names) == len(schema) or len(set(schema.names)) < len(schema):
            return self
        rows = self._upstream.projected(chosen(schema, names, "agg"))
        return KeyedStream(rows, self._keys, self._spec, self._choice)

    def _ungrouped(self) -> tuple[Stream, tuple[str, ...]]:
        return self._upstream, self._keys

    def _reduced(self, rows: Stream, wanted: Sequence[Aggregation]) -> Stream:
        return KeyedStream(rows, self._keys, self._spec, self._choice).reduced(wanted)

    def applyInArrow(self, func: Callable[..., Any], schema: Schema) -> Stream:
        """Apply `func([key,] table) -> table`, or its iterator form, to each group."""
        group, declared = self._group(func, schema, "applyInArrow")
        return self.applied(GroupApplyInArrow(group, self.timezone()), declared)

    def applyInPandas(self, func: Callable[..., Any], schema: Schema) -> Stream:
        """Apply `func([key,] frame) -> frame`, or its iterator form, to each group."""
        require_pandas()
        group, declared = self._group(func, schema, "applyInPandas")
        refuse_objects("applyInPandas", self.schema, declared)
        return self.applied(GroupApplyInPandas(group, self.timezone()), declared)

    def transformWithState(
        self,
        statefulProcessor: Any,
        outputStructType: Schema,
        outputMode: str = "Update",
        timeMode: str = "None",
        initialState: Any = None,
        broadcastStream: Stream | None = None,
    ) -> Stream:
        """Call a `StatefulProcessor` of PySpark's for each key with new rows, as `Row` objects.

        State, timers and times to live are kept for each key, and are part of checkpoints. `timeMode` is `None`,
        `ProcessingTime` or `EventTime`, whose timers fire by the watermark of `withWatermark`. Rows of
        `broadcastStream` come to all tasks: they write the processor's broadcast state.
        """
        modes = Modes(outputMode, timeMode, initialState, broadcastStream)
        return self._stateful("transformWithState", statefulProcessor, outputStructType, modes)

    def transformWithStateInPandas(
        self,
        statefulProcessor: Any,
        outputStructType: Schema,
        outputMode: str = "Update",
        timeMode: str = "None",
        initialState: Any = None,
        broadcastStream: Stream | None = None,
    ) -> Stream:
        """As `transformWithState`, with the rows of a key as frames."""
        require_pandas()
        refuse_objects("transformWithStateInPandas", self.schema)
        modes = Modes(outputMode, timeMode, initialState, broadcastStream)
        return self._stateful("transformWithStateInPandas", statefulProcessor, outputStructType, modes)

    def transformWithStateInArrow(
        self,
        batchProcessor: Any,
        outputStructType: Schema,
        outputMode: str = "Update",
        timeMode: str = "None",
        initialState: Any = None,
        broadcastStream: Stream | None = None,
    ) -> Stream:
        """Call a `BatchProcessor` with all rows at hand: it reads and writes the state of all their keys at once."""
        modes = Modes(outputMode, timeMode, initialState, broadcastStream)
        return self._stateful("transformWithStateInArrow", batchProcessor, outputStructType, modes)

    def cogroup(self, other: KeyedStream) -> CoGroupedStream:
        """Both streams' groups of the same key side by side: `.applyInArrow` and `.applyInPandas` take both."""
        return CoGroupedStream(self, other)

    def top(self, num: int, *cols: str, ascending: bool | Sequence[bool] = False) -> Stream:
        """The first rows of each key by these columns, the greatest first unless told otherwise, with their `rank`.

        A query gives a row whenever it takes a rank: the newest row of each key and rank counts.
        """
        from penstock.stream.top_rows import TopRows

        count = rows_argument(num, "top")
        columns = column_arguments(cols, self.schema, "top")
        if not (count and columns and self._keys):
            raise PlanError("top needs a number of rows, columns to order by, and keys: keyBy('k').top(3, 'price')")
        refuse_ungroupable(self.schema, (*self._keys, *columns))
        directions = [ascending] * len(columns) if isinstance(ascending, bool) else list(ascending)
        if len(directions) != len(columns):
            raise PlanError(f"top: ascending has {len(directions)} values for {len(columns)} columns")
        pairs = tuple(zip(columns, directions, strict=True))
        operator = TopRows(self.schema, self._keys, count, pairs)
        return self.applied(operator, operator.result_schema)

    def join(
        self,
        other: KeyedStream,
        how: str = "inner",
        on: Sequence[str | tuple[str, str]] | None = None,
        between: tuple[str, str, str, str] | None = None,
    ) -> Stream:
        """The equi-join on the keys: inner, left, right, full, left_semi or left_anti; null matches nothing.

        The result has the keys once, then this stream's other columns, then the other's. If the key columns have
        different names, `on` must give the pairs, `[("mine", "theirs")]`, and the result has the names of this
        stream. The right side is collected, of a right join the left: let that be the smaller one.

        Of two streams without an end, `between=("mine", "theirs", "-1 minute", "1 hour")` bounds the time of the
        other row less the time of this one; with it rows are dropped when the watermark says that nothing can meet
        them any more. A left, right or full join needs it, and a watermark on both: then it gives what has met
        nothing, with nulls. A bounded stream on the right is a table that does not change: it is read now, for an
        inner join.
        """
        return joined(self, other, how, on, between)

    def _stateful(self, verb: str, processor: Any, schema: Any, modes: Modes) -> Stream:
        operator = stateful_operator(self, verb, processor, schema, modes)
        keyed = self if modes.broadcast is None else self._beside(modes.broadcast)
        return keyed.applied(operator, operator.schema)

    def _beside(self, shared: Stream) -> KeyedStream:
        """This stream with the rows of another one among its own, which come to all tasks."""
        from penstock.stream.state.shared_rows import MARK, BesideShared, ToAll, marked_schema

        schema = marked_schema(self.schema)
        own = self._upstream.applied(BesideShared(self.schema), schema)
        spec = replace(self._spec, to_all=MARK) if self._keys else self._spec
        return KeyedStream(own.union(shared.applied(ToAll(self.schema), schema)), self._keys, spec, self._choice)

    def _group(self, func: object, schema: object, verb: str) -> tuple[GroupApply, pa.Schema]:
        refuse_ungroupable(self.schema, self._keys)
        declared = schema_argument(schema, verb)
        function = function_argument(func, verb)
        return GroupApply(self.schema, self._keys, function, group_form(function, verb), declared), declared
