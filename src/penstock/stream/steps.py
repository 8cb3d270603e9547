# SPDX-License-Identifier: Apache-2.0
"""Which operators work in a streaming query, and the step that each becomes.

| operator | in a streaming query |
|---|---|
| filter, select and its relatives, unions, explode; partial aggregates of windows | as they are: batch by batch |
| mapInArrow, mapInPandas | their function is called for each epoch; a class is made once for the task |
| those with a `step()` of their own (incremental agg, sinks, a user's) | as that says |
| all others | refused by name: they need their whole input |
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from penstock.checkpoint.channel_state import ChannelKey
from penstock.errors import PlanError
from penstock.graph import JobGraph, JobVertex, Operator
from penstock.operators.batch_by_batch import BatchByBatch
from penstock.operators.functions import MapInArrow, MapInPandas
from penstock.operators.join_sides import AsSide
from penstock.operators.verbs import Explode, Project, Where, Widen
from penstock.operators.window_aggregates import PartialWindows
from penstock.stream.chain import Chain, PlainStep, Step
from penstock.stream.iterators import IteratorStep

_BATCH_BY_BATCH = (Where, Project, Widen, Explode, PartialWindows, AsSide)
_ITERATORS = (MapInArrow, MapInPandas)


@runtime_checkable
class StreamOperator(Protocol):
    """An operator that knows its step. `uid` names its state in checkpoints; empty: its kind does."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""

    @property
    def uid(self) -> str:
        """The id that its state is found by again, also if the plan around it has changed."""

    def step(self) -> Step:
        """The step of one subtask."""


class BatchStep(PlainStep):
    """An operator that turns each batch into others and holds nothing."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._each = operator.each() if isinstance(operator, BatchByBatch) else self._alone

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows that the operator makes of it."""
        return self._each(batch)

    def _alone(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self._operator.apply(iter((batch,)))


def check(operator: Operator) -> None:
    """Raise PlanError, which names the operator, where it does not work in a streaming query."""
    if not isinstance(operator, (*_BATCH_BY_BATCH, *_ITERATORS, StreamOperator)):
        raise PlanError(
            f"{operator.name} needs its whole input, and a stream has no end: use it in a batch query, "
            "or make the rows with mapInArrow or an aggregation by key"
        )


def step_of(operator: Operator) -> Step:
    """The step of one subtask; raises PlanError, which names the operator, where it does not work in a stream."""
    check(operator)
    if isinstance(operator, StreamOperator):
        return operator.step()
    return IteratorStep(operator) if isinstance(operator, _ITERATORS) else BatchStep(operator)


def chain_of(vertex: JobVertex) -> Chain:
    """All steps of a vertex; raises PlanError for what does not work in a stream."""
    if vertex.combine is not None:
        raise PlanError(f"{vertex.combine.name} needs one of its inputs whole, and a stream has no end")
    steps = []
    kinds: Counter[str] = Counter()
    for operator in vertex.operators:
        # By its place among its own kind: a filter that is added in front changes nothing of it.
        kind = type(operator).__name__
        kinds[kind] += 1
        identity = operator.uid if isinstance(operator, StreamOperator) else ""
        steps.append((identity or f"{kind}-{kinds[kind]}", step_of(operator)))
    return Chain(steps)


class RestoredStates(Protocol):
    """The states of the stages of a query in a checkpoint, by their uids."""

    @property
    def is_savepoint(self) -> bool:
        """True if they are a savepoint's, with which the query is to begin."""

    def names(self, uid: str) -> Collection[str]:
        """The chunks of all subtasks."""

    def read(self, uid: str, chunk: str) -> Sequence[bytes]:
        """The bytes that the subtasks stored under this name."""


def refuse_other_steps(graph: JobGraph, states: RestoredStates) -> set[tuple[str, str]]:
    """Raise PlanError or CheckpointError where the operators of a query can't go on from a checkpoint.

    Without this its tasks would find out, one restart after the other. The chunks of a savepoint that the query does
    without are given, each with its stage's uid.
    """
    found: set[tuple[str, str]] = set()
    for vertex in graph.vertices:
        names = {name for name in states.names(vertex.uid) if ChannelKey.of(name) is None}
        if not names:
            continue
        chain, read = chain_of(vertex), functools.partial(states.read, vertex.uid)
        left = chain.left_behind(names, read) if states.is_savepoint else set()
        chain.refuse_others(vertex.name, names - left, read)
        found |= {(vertex.uid, name) for name in left}
    return found


def refuse_rows_again(graph: JobGraph) -> None:
    """Raise CheckpointError where a query that has no checkpoint has published rows before: they would come again.

    A sink may have `check_anew()`, which raises it.
    """
    for vertex in graph.vertices:
        for operator in vertex.operators:
            check_anew = getattr(getattr(operator, "sink", None), "check_anew", None)
            if check_anew is not None:
                check_anew()
