# SPDX-License-Identifier: Apache-2.0
"""The local service passes the conformance suite, with real environment processes, sockets and shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_harness import LocalHarness

from penstock.services.local import Attachment
from penstock.shuffle import PartitionKind
from penstock.testing.conformance import ShuffleServiceConformance
from penstock.testing.conformance_hybrid import HybridConformance

pytestmark = pytest.mark.processes


class TestLocalService(ShuffleServiceConformance):
    """Every kind the local service has in this version."""

    kinds = (
        PartitionKind.PIPELINED_BOUNDED,
        PartitionKind.BLOCKING_HASH,
        PartitionKind.BLOCKING_SORT_MERGE,
        PartitionKind.HYBRID_FULL,
        PartitionKind.HYBRID_SELECTIVE,
    )
    clog_limit = 16 << 20
    request_timeout = 10.0

    @pytest.fixture
    def service(self, request: pytest.FixtureRequest) -> Iterator[LocalHarness]:
        """One application per test, gone behind it."""
        harness = LocalHarness(request.node.name)
        yield harness
        harness.close()


class LittleMemoryHarness(LocalHarness):
    """Host `a`, where the suite writes, has eight segments. Its readers' hosts have the usual memory."""

    def commander(self, name: str) -> Attachment:
        """The harness's own attachment to a host."""
        usual = self.conf
        if name == "a":
            self.conf = {**usual, "spark.penstock.network.memory": "4m"}
        try:
            return super().commander(name)
        finally:
            self.conf = usual


class TestLocalServiceWithLittleMemory(HybridConformance):
    """Hybrid partitions in eight segments: nearly everything goes through the disk."""

    kinds = (PartitionKind.HYBRID_FULL, PartitionKind.HYBRID_SELECTIVE)
    clog_limit = 16 << 20
    call = ShuffleServiceConformance.call
    exchange = ShuffleServiceConformance.exchange
    pytest_generate_tests = ShuffleServiceConformance.pytest_generate_tests

    @pytest.fixture
    def service(self, request: pytest.FixtureRequest) -> Iterator[LocalHarness]:
        """One application per test, gone behind it."""
        harness = LittleMemoryHarness(request.node.name)
        yield harness
        harness.close()
