# SPDX-License-Identifier: Apache-2.0
"""Shuffle services that carry only some kinds, for plans: named `few_kinds:blocking` and so on, they move nothing."""

from __future__ import annotations

from penstock.shuffle import (
    Capabilities,
    PartitionKind,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMaster,
    ShuffleMasterContext,
)

BLOCKING = "few_kinds:blocking"
PIPELINED = "few_kinds:pipelined"
HYBRID = "few_kinds:hybrid"


class PlannedService:
    """A service with these abilities and no others."""

    def __init__(self, name: str, capabilities: Capabilities) -> None:
        self.name = name
        self.capabilities = capabilities

    def create_shuffle_master(self, context: ShuffleMasterContext) -> ShuffleMaster:
        """There is none."""
        raise NotImplementedError

    def create_shuffle_environment(self, context: ShuffleEnvironmentContext) -> ShuffleEnvironment:
        """There is none."""
        raise NotImplementedError

    def preload(self) -> None:
        """Nothing."""


def blocking() -> PlannedService:
    """Files that outlive executors."""
    return PlannedService(BLOCKING, Capabilities((PartitionKind.BLOCKING_SORT_MERGE,), outlives_executors=True))


def pipelined() -> PlannedService:
    """Wires: nothing is stored, and no stream goes over them."""
    return PlannedService(PIPELINED, Capabilities((PartitionKind.PIPELINED_BOUNDED,)))


def hybrid() -> PlannedService:
    """Both of a hybrid kind, the selective one first."""
    return PlannedService(HYBRID, Capabilities((PartitionKind.HYBRID_SELECTIVE, PartitionKind.HYBRID_FULL)))
