# SPDX-License-Identifier: Apache-2.0
"""The figures of an environment that are no single numbers: they travel with its heartbeat."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.shuffle import AttemptId

LOCAL_SERVICE = "local"
"""The service whose partitions an environment process has."""


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """So many partitions of one kind and state, and the bytes that they hold in memory or files, where known."""

    service: str
    kind: str
    state: str
    count: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChannelFigures:
    """One remote channel of a gate that an attempt reads, in detail."""

    attempt: AttemptId
    gate: int
    channel: int
    figures: dict[str, float] = field(default_factory=dict)
