# SPDX-License-Identifier: Apache-2.0
"""The environment of the `local` service as a task sees it: its writers and gates, over the host of one task."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence

from penstock.errors import SettingError
from penstock.link.calls import ListOccupying
from penstock.link.commands import ReleasePartitions, UpdatePartitionInfo
from penstock.plugin.writer import StoredWriter
from penstock.services.local.builders import Builders, OwnSegments, Segments, SharedSegment, WholeMessages
from penstock.services.local.gate import SegmentInputGate
from penstock.services.local.hybrid_layout import HybridSegments, StoredPart
from penstock.services.local.in_flight import SegmentFill
from penstock.services.local.result import LocalFiles
from penstock.services.local.stream_layout import StreamSegments
from penstock.services.local.writer import LayoutParts, LayoutPolicy, SegmentWriter
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    InputGate,
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    ResultPartitionDescriptor,
    ResultPartitionWriter,
    ShuffleDescriptor,
)
from penstock.shuffle.host import TaskHost


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
        """Writers in the order of the descriptors; raises SettingError for a stream that is not pipelined."""
        return [self._writer(owner, descriptor) for descriptor in descriptors]

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[InputGate]:
        """Gates in the order of the descriptors."""
        network = self._network
        return [
            SegmentInputGate(
                self._host, owner, each, verify=network.completeness_check, flow_control=network.flow_control
            )
            for each in descriptors
        ]

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
        kind = descriptor.partition.kind
        if descriptor.is_stream and not (kind.runs_together and kind.bounded):
            raise SettingError(f"a streaming query exchanges rows through pipelined partitions, not {kind.label}")
        if not kind.pipelined:
            store = LocalFiles(self._host, owner.attempt, descriptor, self._blocking)
            return StoredWriter(self._host, owner, descriptor, store)
        policy = self._stream if descriptor.is_stream else self._hybrid if kind.is_hybrid else self._pipelined
        made = functools.partial(policy, descriptor)
        return SegmentWriter(self._host, owner, descriptor, made, verify=self._verify)

    def _pipelined(self, _: ResultPartitionDescriptor, __: Segments) -> LayoutPolicy:
        return LayoutPolicy(lambda parts: WholeMessages(_builders(parts), parts.messages, parts.sums))

    def _hybrid(self, descriptor: ResultPartitionDescriptor, end: Segments) -> LayoutPolicy:
        stored = StoredPart(end, descriptor, self._blocking.reserve)
        return LayoutPolicy(
            lambda parts: HybridSegments(end, _builders(parts), parts.messages, parts.sums, stored), stored.on_store
        )

    def _stream(self, descriptor: ResultPartitionDescriptor, end: Segments) -> LayoutPolicy:
        written = descriptor.partition
        own = 1 if written.broadcast else written.subpartitions
        segments = own * self._network.exclusive_buffers_per_channel + self._network.floating_buffers_per_gate
        size = self._host.data_plane().memory.segment_size
        fill = SegmentFill(self._in_flight_time, segments, size, time.monotonic)
        return LayoutPolicy(
            lambda parts: StreamSegments(end, parts.messages, parts.sums, fill, parts.metrics), overdraws=False
        )


def _builders(parts: LayoutParts) -> Builders:
    if parts.is_packed:
        return SharedSegment(parts.end.take, parts.end.note)
    return OwnSegments(parts.sums.subpartitions, parts.end.take, parts.end.note)
