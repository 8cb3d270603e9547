# SPDX-License-Identifier: Apache-2.0
"""What a stream remembers of how it came to be: sources, operators and exchanges, compared by identity.

Two streams made from one share its steps; that is how a plan sees that a stage is used twice and must run once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.graph import Operator, Source
from penstock.task.exchanges import PartitionerSpec


@dataclass(frozen=True, eq=False, slots=True)
class SourceStep:
    """Where rows come from: a source that tasks read themselves, or a Spark DataFrame.

    `limit` is the parallelism beyond which further subtasks would have nothing to read.
    """

    name: str
    schema: pa.Schema
    source: Source | None = None
    dataframe: object = None
    limit: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class OperatorStep:
    """One operator over one step."""

    parent: Step
    operator: Operator
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class ExchangeChoice:
    """What an edge asks for; None leaves it to the settings, or to the slots at hand."""

    partitions: int | None = None
    mode: str | None = None
    service: str | None = None


@dataclass(frozen=True, eq=False, slots=True)
class ExchangeStep:
    """One exchange over all branches of a stream."""

    parents: tuple[Step, ...]
    spec: PartitionerSpec
    choice: ExchangeChoice

    @property
    def schema(self) -> pa.Schema:
        """An exchange does not change rows."""
        return self.parents[0].schema

    @property
    def name(self) -> str:
        """What `explain` shows."""
        keys = ", ".join(self.spec.keys)
        return f"{self.spec.kind}({keys})" if keys else self.spec.kind


Step = SourceStep | OperatorStep | ExchangeStep


def parents_of(step: Step) -> tuple[Step, ...]:
    """The steps a step reads."""
    if isinstance(step, SourceStep):
        return ()
    return (step.parent,) if isinstance(step, OperatorStep) else step.parents


def in_order(results: tuple[Step, ...]) -> Iterator[Step]:
    """All steps that the results need, each once, parents first."""
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
        waiting.extend((parent, False) for parent in reversed(parents_of(step)))
