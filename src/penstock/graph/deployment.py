# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's words to a task at its deployment: which partitions to read and to write.

Operators, schemas and partitioners are not repeated here: they came with the job graph in Spark's closure.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.graph.streaming import StreamDeployment
from penstock.shuffle import AttemptId, ShuffleDescriptor
from penstock.shuffle.ids import Wire


@dataclass(frozen=True, slots=True)
class InputDeployment:
    """One gate: the edge, and per channel the partition, the first subpartition to read and their number."""

    edge: int
    channels: tuple[tuple[ShuffleDescriptor, int, int], ...]
    await_confirmation: bool

    def to_wire(self) -> Wire:
        """Plain tuple for a control message."""
        channels = tuple((source.to_wire(), first, count) for source, first, count in self.channels)
        return (self.edge, channels, self.await_confirmation)

    @classmethod
    def from_wire(cls, wire: Wire) -> InputDeployment:
        """Inverse of `to_wire`."""
        edge, channels, await_confirmation = wire
        ranges = tuple((ShuffleDescriptor.from_wire(tuple(s)), int(i), int(n)) for s, i, n in channels)  # type: ignore[attr-defined]
        return cls(int(edge), ranges, bool(await_confirmation))  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class OutputDeployment:
    """One result partition: the edge (or RESULT_EDGE), its descriptor and its number of subpartitions."""

    edge: int
    descriptor: ShuffleDescriptor
    subpartitions: int

    def to_wire(self) -> Wire:
        """Plain tuple for a control message."""
        return (self.edge, self.descriptor.to_wire(), self.subpartitions)

    @classmethod
    def from_wire(cls, wire: Wire) -> OutputDeployment:
        """Inverse of `to_wire`."""
        edge, descriptor, subpartitions = wire
        return cls(int(edge), ShuffleDescriptor.from_wire(tuple(descriptor)), int(subpartitions))  # type: ignore[call-overload,arg-type]


@dataclass(frozen=True, slots=True)
class TaskDeployment:
    """All of one attempt; `streaming` where it is one of a streaming query."""

    attempt: AttemptId
    inputs: tuple[InputDeployment, ...]
    outputs: tuple[OutputDeployment, ...]
    streaming: StreamDeployment | None = None

    def to_wire(self) -> Wire:
        """Plain tuple for a control message."""
        return (
            self.attempt.to_wire(),
            tuple(item.to_wire() for item in self.inputs),
            tuple(item.to_wire() for item in self.outputs),
            None if self.streaming is None else self.streaming.to_wire(),
        )

    @classmethod
    def from_wire(cls, wire: Wire) -> TaskDeployment:
        """Inverse of `to_wire`."""
        attempt, inputs, outputs, streaming = wire
        return cls(
            AttemptId.from_wire(tuple(attempt)),  # type: ignore[arg-type]
            tuple(InputDeployment.from_wire(tuple(item)) for item in inputs),  # type: ignore[attr-defined]
            tuple(OutputDeployment.from_wire(tuple(item)) for item in outputs),  # type: ignore[attr-defined]
            None if streaming is None else StreamDeployment.from_wire(tuple(streaming)),  # type: ignore[arg-type]
        )
