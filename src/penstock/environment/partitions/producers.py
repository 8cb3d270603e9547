# SPDX-License-Identifier: Apache-2.0
"""The producers on this host: here the partitions that its tasks write are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.partition.registry import PartitionRegistry
from penstock.shuffle import PartitionId


@dataclass(frozen=True, slots=True)
class Producers:
    """The listeners to partitions of the environment `host`. `announce` says that one can be consumed."""

    host: str
    registry: PartitionRegistry
    announce: Callable[[PartitionId], None]
