# SPDX-License-Identifier: Apache-2.0
"""A streaming task at an environment of this process: what tests of its writers and gates make them with."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.attachment.attachment import Attachment
from penstock.attachment.mailbox import AttachmentMailbox
from penstock.services.local.environment import LocalShuffleEnvironment
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    DatasetId,
    InputGate,
    InputGateDescriptor,
    MetricGroup,
    OwnerContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ResultPartitionDescriptor,
    ResultPartitionWriter,
    ShuffleDescriptor,
)
from penstock.shuffle.splits import Split
from penstock.testing import DEADLINE

SCHEMA = pa.schema([("n", pa.int64())])


class Writer:
    """A writer that is offered batches; else the one that it was made of."""

    def __init__(self, raw: ResultPartitionWriter) -> None:
        self.raw = raw

    def offer(self, batch: pa.RecordBatch, subpartition: int) -> int:
        """The rows that are taken of a batch for one subpartition."""
        return self.raw.offer(Split.whole(batch, subpartition))

    def __getattr__(self, name: str) -> object:
        return getattr(self.raw, name)


@dataclass(slots=True)
class Task:
    """A streaming task: what it waits at, and what its writers and gates are made with."""

    attachment: Attachment
    owner: OwnerContext
    mailbox: AttachmentMailbox
    environment: LocalShuffleEnvironment
    kind: PartitionKind = PartitionKind.PIPELINED_BOUNDED

    def write(self, number: int = 0, subpartitions: int = 1, schema: pa.Schema = SCHEMA) -> Writer:
        """A writer with its first room."""
        result = self.result(number, subpartitions, schema)
        (writer,) = self.environment.create_result_partition_writers(self.owner, [result])
        writer.setup()
        self.mailbox.wait(DEADLINE)
        return Writer(writer)

    def result(self, number: int, subpartitions: int, schema: pa.Schema) -> ResultPartitionDescriptor:
        """The partition to be written."""
        partition = PartitionDescriptor(DatasetId("job", 0), number, self.kind, subpartitions)
        return ResultPartitionDescriptor(partition, self.place(number), schema, is_stream=True)

    def read(self, *sources: tuple[int, int], schema: pa.Schema = SCHEMA) -> InputGate:
        """A gate over these subpartitions of partitions of this task."""
        channels = tuple(ChannelDescriptor(self.place(number), subpartition) for number, subpartition in sources)
        (gate,) = self.environment.create_input_gates(self.owner, [InputGateDescriptor(0, schema, channels)])
        gate.setup()
        return gate

    def place(self, number: int) -> ShuffleDescriptor:
        """The descriptor by which a partition of this task is found."""
        kind, name = self.kind, self.attachment.environment
        return ShuffleDescriptor(
            PartitionId(DatasetId("job", 0), number, self.owner.attempt.attempt), "local", kind, name
        )


def task_of(attachment: Attachment, attempt: int = 5, kind: PartitionKind = PartitionKind.PIPELINED_BOUNDED) -> Task:
    """A task with this attachment, whose partitions are of this kind."""
    owner = OwnerContext(AttemptId("job", 0, 0, attempt), "test", MetricGroup("test"))
    mailbox = AttachmentMailbox(attachment, owner.attempt)
    whole = Settings.from_conf({"spark.penstock.streaming.inFlightTime": "0s"})  # else segments are small at first
    return Task(attachment, owner, mailbox, LocalShuffleEnvironment(attachment, whole), kind)


def numbers(*values: int) -> pa.RecordBatch:
    """A batch of one column."""
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


class Clock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now
