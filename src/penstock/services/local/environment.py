# SPDX-License-Identifier: Apache-2.0
"""The environment of the `local` service as a task sees it: its writers and gates, over the host of one task."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from penstock.link.calls import ListOccupying
from penstock.link.commands import ReleasePartitions, UpdatePartitionInfo
from penstock.services.local.gate import SegmentInputGate
from penstock.services.local.hybrid_writer import HybridPartitionWriter
from penstock.services.local.in_flight import SegmentFill
from penstock.services.local.result import BlockingPartitionWriter
from penstock.services.local.stream_gate import SegmentStreamGate
from penstock.services.local.stream_writer import SegmentStreamWriter
from penstock.services.local.writer import SegmentPartitionWriter
from penstock.shuffle import (
    AttemptId,
    InputGate,
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    ResultPartitionDescriptor,
    ResultPartitionWriter,
    Settings,
    ShuffleDescriptor,
)
from penstock.shuffle.errors import SettingError
from penstock.shuffle.host import TaskHost
from penstock.shuffle.streaming import StreamInputGate, StreamPartitionWriter


class LocalShuffleEnvironment:
    """A task process's view of its host's environment process."""

    def __init__(self, host: TaskHost, settings: Settings) -> None:
        self._host = host
        self._verify = settings.network.completeness_check
        self._blocking = settings.blocking
        self._network = settings.network
        self._in_flight_time = settings.streaming.in_flight_time

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[ResultPartitionWriter]:
        """Writers in the order of the descriptors."""
        return [self._writer(owner, descriptor) for descriptor in descriptors]

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[InputGate]:
        """Gates in the order of the descriptors."""
        return [SegmentInputGate(self._host, owner, descriptor, verify=self._verify) for descriptor in descriptors]

    def create_stream_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[StreamPartitionWriter]:
        """Writers of a streaming query, in the order of the descriptors; raises SettingError for another kind."""
        for kind in (descriptor.partition.kind for descriptor in descriptors):
            if not kind.carries_streams:
                raise SettingError(f"a streaming query exchanges rows through pipelined partitions, not {kind.label}")
        return [
            SegmentStreamWriter(self._host, owner, descriptor, self._fill(descriptor), verify=self._verify)
            for descriptor in descriptors
        ]

    def _fill(self, descriptor: ResultPartitionDescriptor) -> SegmentFill:
        own = 1 if descriptor.partition.broadcast else descriptor.partition.subpartitions
        segments = own * self._network.exclusive_buffers_per_channel + self._network.floating_buffers_per_gate
        return SegmentFill(
            self._in_flight_time, segments, self._host.data_plane().memory.segment_size, time.monotonic
        )

    def create_stream_gates(
        self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]
    ) -> list[StreamInputGate]:
        """Gates of a streaming query, in the order of the descriptors."""
        return [SegmentStreamGate(self._host, owner, descriptor, verify=self._verify) for descriptor in descriptors]

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        """Release the host's resources of these partitions."""
        self._host.ask(ReleasePartitions(tuple(partitions)))

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        """The partitions that hold memory or files on this host."""
        return list(self._host.ask(ListOccupying()).partitions)

    def update_partition_info(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Replace an unknown producer of a gate by the real one."""
        return self._host.ask(UpdatePartitionInfo(consumer, descriptor)).updated

    def close(self) -> None:
        """Nothing is held but by writers and gates."""

    def _writer(self, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> ResultPartitionWriter:
        host, kind = self._host, descriptor.partition.kind
        if kind.is_hybrid:
            reserve = self._blocking.reserve
            return HybridPartitionWriter(host, owner, descriptor, verify=self._verify, reserve=reserve)
        if kind.pipelined:
            return SegmentPartitionWriter(host, owner, descriptor, verify=self._verify)
        return BlockingPartitionWriter(host, owner, descriptor, self._blocking)
