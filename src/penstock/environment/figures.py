# SPDX-License-Identifier: Apache-2.0
"""The figures of an environment process, read off its parts when a heartbeat is due or its metrics are read.

Counters are plain numbers of the objects that count. Here they are put together: a few steps for each task, gate,
writer and partition, none for each channel, unless those are wanted in detail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.buffer.local_pool import LocalPoolStatistics
from penstock.environment.peers.remote import RemoteExchange
from penstock.environment.ports.inputs import GatePort
from penstock.environment.tasks.attached import AttachedTask
from penstock.link.figures import LOCAL_SERVICE, ChannelFigures, PartitionFigures
from penstock.partition.registry import PartitionRegistry
from penstock.shuffle import AttemptId

TaskFigures = tuple[tuple[AttemptId, dict[str, float]], ...]


def task_figures(tasks: Iterable[AttachedTask], remote: RemoteExchange) -> TaskFigures:
    """The figures that tasks have told of themselves, with those of their gates and writers."""
    return tuple(
        (task.attempt, {**task.metrics, **task.counts(), **_ports(task, remote)})
        for task in tasks
        if task.attempt is not None
    )


def partition_figures(registry: PartitionRegistry, segment_size: int) -> tuple[PartitionFigures, ...]:
    """The partitions that are here, by kind and state."""
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for partition in registry.present():
        key = partition.label, partition.state.value
        counts[key] += 1
        sizes[key] += partition.size(segment_size)
    return tuple(PartitionFigures(LOCAL_SERVICE, *key, count, sizes[key]) for key, count in sorted(counts.items()))


def channel_figures(tasks: Iterable[AttachedTask]) -> tuple[ChannelFigures, ...]:
    """Each channel to another environment that a task reads, in detail."""
    return tuple(
        ChannelFigures(gate.attempt, gate.port, channel.index, channel.figures())
        for task in tasks
        for gate in task.gates.values()
        for channel in gate.channels
        if channel.figures is not None and channel.source is not None
    )


def _ports(task: AttachedTask, remote: RemoteExchange) -> dict[str, float]:
    gates, writers = list(task.gates.values()), list(task.writers.values())
    figures: dict[str, float] = {}
    if gates:
        figures.update(_of_gates(gates, [pool for gate in gates if (pool := remote.floating(gate)) is not None]))
    if writers:
        pools = [pool for writer in writers if (pool := writer.pool) is not None]
        figures["out_pool_usage"] = _usage(pools)
        figures["out_queue"] = sum(writer.queued for writer in writers)
    return figures


def _of_gates(gates: list[GatePort], pools: list[LocalPoolStatistics]) -> dict[str, float]:
    return {
        "bytes_in_local": sum(gate.bytes_local for gate in gates),
        "bytes_in_remote": sum(gate.bytes_remote for gate in gates),
        "in_queue": sum(gate.queued for gate in gates),
        "in_pool_usage": _usage(pools),
        "in_floating": sum(pool.requested for pool in pools),
    }


def _usage(pools: list[LocalPoolStatistics]) -> float:
    size = sum(pool.size for pool in pools)
    return round(sum(pool.requested for pool in pools) / size, 3) if size else 0.0
