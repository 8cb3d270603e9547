# SPDX-License-Identifier: Apache-2.0
"""Identities: a partition belongs to one attempt of its producer, so no reader ever mixes attempts."""

from __future__ import annotations

from dataclasses import dataclass

Wire = tuple[object, ...]
"""What descriptors and ids look like in a control message: plain tuples of strings, numbers and tuples."""


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One execution attempt of one subtask of one job vertex.

    `attempt` of a subtask counts from 0: the JobMaster numbers its attempts, one at a time. `attempt` of whatever
    Spark starts (a worker, a task that is bound to its subtask, a reader of a result) is Spark's task attempt id,
    so two that live at the same time, as after an executor's death, never share an identity.
    """

    job: str
    vertex: int
    subtask: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job}/v{self.vertex}.{self.subtask}#{self.attempt}"

    def to_wire(self) -> Wire:
        """Plain tuple for a control message."""
        return (self.job, self.vertex, self.subtask, self.attempt)

    @classmethod
    def from_wire(cls, wire: Wire) -> AttemptId:
        """Inverse of `to_wire`; raises ValueError or TypeError on another shape."""
        job, vertex, subtask, attempt = wire
        return cls(str(job), int(vertex), int(subtask), int(attempt))  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """A result partition: `(dataset, index, producer attempt)`.

    The dataset names one edge of one job (`<job>-e<edge>`), the index is the producer's subtask.
    """

    dataset: str
    index: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.dataset}.{self.index}#{self.attempt}"

    def to_wire(self) -> Wire:
        """Plain tuple for a control message."""
        return (self.dataset, self.index, self.attempt)

    @classmethod
    def from_wire(cls, wire: Wire) -> PartitionId:
        """Inverse of `to_wire`; raises ValueError or TypeError on another shape."""
        dataset, index, attempt = wire
        return cls(str(dataset), int(index), int(attempt))  # type: ignore[call-overload]
