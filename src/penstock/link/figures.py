# SPDX-License-Identifier: Apache-2.0
"""The figures of an environment that are no single numbers: they travel with its heartbeat."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

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


class UseKind(StrEnum):
    """The things of a process that may be slow by themselves."""

    DISK = "disk"
    WORKER = "worker"
    USER = "user"


@dataclass(frozen=True, slots=True)
class UseFigures:
    """The use of one of a process's disks, workers or users, as numbers that only grow.

    A disk has `read_bytes`, `read_seconds`, `write_bytes`, `write_seconds`; a worker `seconds`, `busy_seconds` and
    the attempt that it works on; a user, where a process serves several, `bytes`, `waiting_seconds`. A process may
    leave out what it does not know.
    """

    kind: UseKind
    name: str
    figures: dict[str, float] = field(default_factory=dict)
    attempt: AttemptId | None = None


@dataclass(frozen=True, slots=True)
class ChannelFigures:
    """One remote channel of a gate that an attempt reads, in detail."""

    attempt: AttemptId
    gate: int
    channel: int
    figures: dict[str, float] = field(default_factory=dict)
