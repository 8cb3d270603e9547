# SPDX-License-Identifier: Apache-2.0
"""What a partition and its writer use of the registry; `PartitionRegistry` has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.partition.registry import ReadablePartition
from penstock.shuffle import PartitionId


class Registrar(Protocol):
    """Who is told of partitions that come, and of their ends."""

    def register(self, partition: ReadablePartition) -> None:
        """Make a partition known. ProtocolError for a second one, StaleError after its end."""

    def bury(self, partition: PartitionId) -> None:
        """A partition has ended by itself: keep only how."""

    def fail(self, partition: PartitionId, cause: BaseException | str) -> None:
        """A producer failed, perhaps before it registered."""

    def lose(self, partitions: Iterable[PartitionId], cause: str) -> None:
        """Data is gone against everybody's will."""
