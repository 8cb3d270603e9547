# SPDX-License-Identifier: Apache-2.0
"""Descriptors: what a producer will write, who it is, and where a reader finds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.shuffle.ids import AttemptId, DatasetId, PartitionId, Wire
from penstock.shuffle.kinds import PartitionKind

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PartitionDescriptor:
    """The description of a partition to be written: its place in a dataset, its kind, its number of subpartitions."""

    dataset: DatasetId
    index: int
    kind: PartitionKind
    subpartitions: int
    broadcast: bool = False


@dataclass(frozen=True, slots=True)
class ProducerDescriptor:
    """The writer of it: the attempt, the environment it runs beside, and that environment's data address.

    `address` is `tcp://host:port`, or empty where the environment cannot be reached from outside.
    """

    attempt: AttemptId
    environment: str
    address: str


@dataclass(frozen=True, slots=True)
class ShuffleDescriptor:
    """The way for a reader to a partition. Given out by a ShuffleMaster, opaque to the engine.

    `environment` is the environment that holds local resources for it, or empty where there is none.
    An `attempt` of -1 in the partition means *unknown*: the consumer was deployed before its producer, and
    `update_partition_info` brings the real descriptor later. `location` is the service's own business, and may be a
    key, so it is not shown.
    """

    partition: PartitionId
    service: str
    kind: PartitionKind
    environment: str = ""
    address: str = ""
    location: str = field(default="", repr=False)
    empty: bool = False

    @classmethod
    def unknown(cls, dataset: DatasetId, index: int, service: str, kind: PartitionKind) -> ShuffleDescriptor:
        """A placeholder for a producer that is not known yet."""
        return cls(PartitionId(dataset, index, -1), service, kind)

    @property
    def is_unknown(self) -> bool:
        """True if this is a placeholder that `update_partition_info` will replace."""
        return self.partition.attempt < 0 and not self.empty

    @property
    def stores_local_resources_on(self) -> str | None:
        """The environment that must be told to release it, or None where it is purely external."""
        return self.environment or None

    def to_wire(self) -> Wire:
        """Plain tuple for a control message."""
        return (
            self.partition.to_wire(),
            self.service,
            self.kind.label,
            self.environment,
            self.address,
            self.location,
            self.empty,
        )

    @classmethod
    def from_wire(cls, wire: Wire) -> ShuffleDescriptor:
        """Inverse of `to_wire`; raises ValueError or TypeError on another shape."""
        partition, service, kind, environment, address, location, empty = wire
        return cls(
            PartitionId.from_wire(tuple(partition)),  # type: ignore[arg-type]
            str(service),
            PartitionKind.from_label(str(kind)),
            str(environment),
            str(address),
            str(location),
            bool(empty),
        )


@dataclass(frozen=True, slots=True)
class ChannelDescriptor:
    """One input channel of a gate: which subpartitions of which partition it reads.

    `count` subpartitions from `subpartition` on; more than one only of blocking partitions, whose range is read as
    if it were one subpartition: one EndOfData, one EndOfPartition with the sums.
    """

    source: ShuffleDescriptor
    subpartition: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class InputGateDescriptor:
    """One input of a subtask: its channels, in order of the producers' index, and the rows' schema.

    `gate` is the edge's number. With `await_confirmation` the gate's end counts only after the JobMaster has
    confirmed the producers (tasks that read a DataFrame see a false end of input when Spark cancels them).
    """

    gate: int
    schema: pa.Schema
    channels: tuple[ChannelDescriptor, ...]
    await_confirmation: bool = False


@dataclass(frozen=True, slots=True)
class ResultPartitionDescriptor:
    """One output of a subtask: the partition to write, its descriptor from the ShuffleMaster, its schema.

    A stream has events of all kinds, and what is under way in it stays small; else the partition is written to its
    end as fast as that goes.
    """

    partition: PartitionDescriptor
    shuffle: ShuffleDescriptor
    schema: pa.Schema
    is_stream: bool = False
    options: dict[str, str] = field(default_factory=dict)
