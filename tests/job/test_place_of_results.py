# SPDX-License-Identifier: Apache-2.0
"""The hosts that hold a persisted result, as people are told."""

from __future__ import annotations

from penstock.shuffle import DatasetId, PartitionId, PartitionKind, ShuffleDescriptor
from penstock.shuffle.ids import environment_name
from penstock.spark.datasets import HeldResult


def at(index: int, environment: str, address: str) -> ShuffleDescriptor:
    """A partition there."""
    partition = PartitionId(DatasetId("job", 0, is_result=True), index, 0)
    return ShuffleDescriptor(partition, "a service", PartitionKind.BLOCKING_PERSISTENT, environment, address)


def test_a_result_is_at_its_environments_or_at_the_services_that_have_it() -> None:
    """A partition that no environment holds is at the host of its address, whatever its scheme."""
    beside = at(0, environment_name("alpha", 7, "a"), "tcp://10.0.0.1:1")
    kept, other = at(1, "", "tcp://10.0.0.2:7447"), at(2, "", "tls://[fd00::1]:7447")
    assert HeldResult("job", (beside, kept, other, kept), 0, 0, 0.0).place == "10.0.0.2, [fd00::1], alpha"
