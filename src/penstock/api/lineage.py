# SPDX-License-Identifier: Apache-2.0
"""The steps by which a stream came to be: sources, operators, exchanges, combinations, compared by identity.

Two streams made from one share its steps; that is how a plan sees that a stage is used twice and must run once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.graph import Combine, Operator, Resources, Source, Summary, exchange_title
from penstock.operators.exchanges import PartitionerSpec


@dataclass(frozen=True, eq=False, slots=True)
class SourceStep:
    """The origin of rows: a source that tasks read themselves, or a Spark DataFrame.

    `limit` is the parallelism beyond which further subtasks would have nothing to read; `partitions` the parallelism
    that was asked for. `bytes` are those of all rows, about, where that is known. A `streaming` source is read by a
    streaming query only, and may have no end. `uid` is what its stage is called in checkpoints.
    """

    name: str
    schema: pa.Schema
    source: Source | None = None
    dataframe: object = None
    limit: int | None = None
    partitions: int | None = None
    streaming: bool = False
    bytes: int | None = None
    uid: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class OperatorStep:
    """One operator over one step."""

    parent: Step
    operator: Operator
    schema: pa.Schema
    uid: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class ResourcesStep:
    """The same rows; the stage that gives them needs resources of its own."""

    parent: Step
    resources: Resources

    @property
    def schema(self) -> pa.Schema:
        """The parent's schema."""
        return self.parent.schema


@dataclass(frozen=True, slots=True)
class ExchangeChoice:
    """The wishes for an edge; None leaves one to the settings, or to the slots at hand."""

    partitions: int | None = None
    mode: str | None = None
    service: str | None = None


@dataclass(frozen=True, eq=False, slots=True)
class ExchangeStep:
    """One exchange over all branches of a stream, or over a summary of each."""

    parents: tuple[Step, ...]
    spec: PartitionerSpec
    choice: ExchangeChoice
    summary: Summary | None = None
    uid: str = ""

    @property
    def schema(self) -> pa.Schema:
        """An exchange does not change rows; a summary replaces them."""
        return self.parents[0].schema if self.summary is None else self.summary.schema

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return exchange_title(self.spec)


@dataclass(frozen=True, slots=True)
class CombineInput:
    """One side of a combination: the branches it reads, and how their rows come to it."""

    parents: tuple[Step, ...]
    spec: PartitionerSpec
    choice: ExchangeChoice


@dataclass(frozen=True, eq=False, slots=True)
class CombineStep:
    """Several streams into one, each over an exchange of its own to the same subtasks."""

    inputs: tuple[CombineInput, ...]
    combine: Combine
    schema: pa.Schema
    partitions: int | None = None


Step = SourceStep | OperatorStep | ResourcesStep | ExchangeStep | CombineStep


def parents_of(step: Step) -> tuple[Step, ...]:
    """The steps a step reads."""
    if isinstance(step, SourceStep):
        return ()
    if isinstance(step, OperatorStep | ResourcesStep):
        return (step.parent,)
    if isinstance(step, CombineStep):
        return tuple(parent for side in step.inputs for parent in side.parents)
    return step.parents


def in_order(results: tuple[Step, ...], until: Callable[[Step], bool] = lambda _: False) -> Iterator[Step]:
    """All steps that the results need, each once, parents first; not beyond those for which `until` holds."""
    done: set[int] = set()
    waiting: list[tuple[Step, bool]] = [(step, False) for step in reversed(results)]
    while waiting:
        step, ready = waiting.pop()
        if id(step) in done:
            continue
        if ready:
            done.add(id(step))
            yield step
            continue
        waiting.append((step, True))
        if not until(step):
            waiting.extend((parent, False) for parent in reversed(parents_of(step)))


def with_parents(step: Step, parent_of: Callable[[Step], Step]) -> Step:
    """The step over other parents: what `parent_of` gives for each of its own; itself where that changes nothing."""
    found = [(parent, parent_of(parent)) for parent in parents_of(step)]
    if all(new is old for old, new in found):
        return step
    news = iter([new for _, new in found])
    if isinstance(step, OperatorStep | ResourcesStep):
        return replace(step, parent=next(news))
    if isinstance(step, CombineStep):
        sides = tuple(replace(side, parents=tuple(next(news) for _ in side.parents)) for side in step.inputs)
        return replace(step, inputs=sides)
    return replace(step, parents=tuple(news)) if isinstance(step, ExchangeStep) else step
