# SPDX-License-Identifier: Apache-2.0
"""The local service passes the conformance suite, with real environment processes, sockets and shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_harness import LocalHarness

from penstock.shuffle import PartitionKind
from penstock.testing.conformance import ShuffleServiceConformance

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
