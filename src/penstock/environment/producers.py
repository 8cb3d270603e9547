# SPDX-License-Identifier: Apache-2.0
"""Where the partitions that tasks write on this host are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.partition.registry import PartitionRegistry
from penstock.shuffle import PartitionId


@dataclass(frozen=True, slots=True)
class Producers:
    """Who is told of partitions of the environment `host`. `announce` says that one can be consumed."""

    host: str
    registry: PartitionRegistry
    announce: Callable[[PartitionId], None]
