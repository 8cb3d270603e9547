# SPDX-License-Identifier: Apache-2.0
"""Reads partitions of results in a Spark task, or in the driver, through the environment process of its host.

Several partitions are read one after the other, in the order they are given in. Those that lie on this host are
opened at once: a release that comes while the first is read then leaves the others readable too. One on another
host is asked for when its turn comes. Limit: so many files at a time are held open; what lies beyond is opened later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.attachment.launch import EnvironmentLaunch
from penstock.errors import PartitionError
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    InputGate,
    InputGateDescriptor,
    MetricGroup,
    OwnerContext,
    ShuffleDescriptor,
    ShuffleEnvironment,
)
from penstock.shuffle.host import TaskWait
from penstock.shuffle.ids import Wire
from penstock.task.blocking import BlockingInput

if TYPE_CHECKING:
    from penstock.attachment.attachment import Attachment

_READER_VERTEX = -2
"""A reader is no vertex of the job: its attempts are of this one."""
_OPEN_FILES = 128
_NUMBERS = itertools.count()
"""Of what reads outside a task: a driver's actions, on any thread."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class PersistedSource:
    """Reads a persisted result: each subtask a run of neighbouring partitions, in order. Picklable."""

    name: str
    schema: pa.Schema
    partitions: tuple[Wire, ...]
    launch: EnvironmentLaunch = field(repr=False)

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """This subtask's partitions, through the environment of its host."""
        count = len(self.partitions)
        share = self.partitions[subtask * count // parallelism : (subtask + 1) * count // parallelism]
        try:
            yield from read_partitions(
                [ShuffleDescriptor.from_wire(tuple(wire)) for wire in share], self.schema, self.launch
            )
        except PartitionError as error:
            # Not the reader's own type: to the JobMaster that would be the consequence of another task's failure.
            raise PartitionError(
                f"the persisted stream {self.name} can't be read: {error}. Run the action again: what is persisted"
                " and not there is recomputed"
            ) from None


def read_partitions(
    descriptors: Sequence[ShuffleDescriptor], schema: pa.Schema, launch: EnvironmentLaunch
) -> Generator[pa.RecordBatch, None, None]:
    """The batches of these partitions; raises the PartitionError of the first that can't be read."""
    wanted = [descriptor for descriptor in descriptors if not descriptor.empty]
    if not wanted:
        return
    with attached(launch) as attachment:
        yield from read_attached(attachment, wanted, schema, launch)


@contextmanager
def attached(launch: EnvironmentLaunch) -> Iterator[Attachment]:
    """An attachment to this host's environment, which is started where there is none."""
    from penstock.attachment.attachment import attach
    from penstock.spark.python_worker import settle_in
    from penstock.spark.task import launch_here

    settle_in()
    attachment = attach(launch_here(launch))
    try:
        yield attachment
    finally:
        attachment.close()


def read_attached(
    attachment: Attachment, wanted: Sequence[ShuffleDescriptor], schema: pa.Schema, launch: EnvironmentLaunch
) -> Batches:
    """The batches of these partitions, none of them empty, over an attachment; errors as of `read_partitions`."""
    from penstock.spark.task import TaskEnvironments, environment_context

    with ExitStack() as stack:
        environments = TaskEnvironments(environment_context(launch, attachment, Settings.from_conf(launch.settings)))
        stack.callback(environments.close)
        parts: list[Batches] = []
        for descriptor in wanted:
            batches = _batches(environments.of(descriptor.service), attachment, descriptor, schema)
            stack.callback(batches.close)
            is_here = descriptor.environment == attachment.environment
            parts.append(_begun(batches) if is_here and len(parts) < _OPEN_FILES else batches)
        for part in parts:
            yield from part


def reading(
    descriptors: Sequence[ShuffleDescriptor], schema: pa.Schema, launch: EnvironmentLaunch
) -> Callable[[Batches], Batches]:
    """A function for `mapInArrow` that gives the rows of these partitions, whatever its input."""

    def penstock_read(batches: Batches) -> Batches:
        for _ in batches:
            pass
        yield from read_partitions(descriptors, schema, launch)

    return penstock_read


def _begun(batches: Batches) -> Batches:
    """The same batches, of which the first has been read, so that the file is open."""
    first = next(batches, None)
    return batches if first is None else chain((first,), batches)


def _batches(
    environment: ShuffleEnvironment, waiting: TaskWait, descriptor: ShuffleDescriptor, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    gate = _gate(environment, descriptor, schema)
    rows = BlockingInput([gate], waiting)
    try:
        gate.setup()
        while (received := rows.next()) is not None:
            if received.batch is not None:
                yield received.batch
    finally:
        gate.close()


def _gate(environment: ShuffleEnvironment, descriptor: ShuffleDescriptor, schema: pa.Schema) -> InputGate:
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.taskAttemptId() if context is not None else next(_NUMBERS)
    attempt = AttemptId(str(descriptor.partition.dataset), _READER_VERTEX, descriptor.partition.index, number)
    owner = OwnerContext(attempt, f"reader of {descriptor.partition}", MetricGroup("reader"))
    channels = (ChannelDescriptor(descriptor, 0),)
    (gate,) = environment.create_input_gates(owner, [InputGateDescriptor(0, schema, channels)])
    return gate
