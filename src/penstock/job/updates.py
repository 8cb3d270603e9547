# SPDX-License-Identifier: Apache-2.0
"""Tells consumers of partitions that can be read: those that run and were deployed before the partition was there."""

from __future__ import annotations

from collections.abc import Callable

from penstock.graph.job_graph import RESULT_EDGE
from penstock.job import instructions as do
from penstock.job.job_tasks import JobTasks
from penstock.job.subtask import Subtask
from penstock.job.topology import JobTopology
from penstock.shuffle import ShuffleDescriptor


class Updates:
    """Of one job. `record` writes the job's trace."""

    def __init__(
        self,
        topology: JobTopology,
        tasks: JobTasks,
        emit: Callable[[do.Instruction], None],
        record: Callable[[str, str], None],
    ) -> None:
        self._topology = topology
        self._tasks = tasks
        self._emit = emit
        self._record = record

    def announce(self, subtask: Subtask, edge: int) -> None:
        """A partition can be read; nothing when that was told before."""
        if edge in subtask.consumable or edge not in subtask.outputs:
            return
        subtask.consumable.add(edge)
        self._tasks.tell_anew(subtask)
        descriptor = subtask.outputs[edge]
        self._record("partition_consumable", str(descriptor.partition))
        self._tell(edge, subtask.index, descriptor)

    def announce_empty(self, subtask: Subtask) -> None:
        """A subtask never started, because there were no rows for it: its partitions are empty."""
        for edge in self._topology.graph.outputs_of(subtask.vertex.id):
            descriptor = self._topology.placeholder(edge.id, subtask.vertex.id, subtask.index, empty=True)
            self._tell(edge.id, subtask.index, descriptor)

    def _tell(self, edge: int, index: int, descriptor: ShuffleDescriptor) -> None:
        if edge == RESULT_EDGE:
            return
        consumer = self._topology.graph.edge(edge).consumer
        if not self._tasks.is_running(consumer):
            return
        told = 0
        for number in self._topology.consumers_of(edge, index):
            reader = self._tasks.find(consumer, number)
            if reader is not None and reader.deployed and reader.attempt is not None and not reader.is_ended:
                told += 1
                self._emit(do.UpdatePartitionInfo(reader.environment, reader.attempt, edge, descriptor))
        if told:
            self._record("partition_info_updated", str(descriptor.partition))
