# SPDX-License-Identifier: Apache-2.0
"""The in-memory service passes the conformance suite; so the suite itself is known to be passable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effort import some_of
from memory_harness import REQUEST_TIMEOUT, MemoryHarness
from penstock.testing.conformance import ShuffleServiceConformance
from penstock.testing.conformance_overtaking import OvertakingConformance
from penstock.testing.conformance_streams import StreamConformance
from penstock.testing.memory_registry import live_applications
from penstock.testing.memory_service import MemoryShuffleService


class TestMemoryService(StreamConformance, OvertakingConformance, ShuffleServiceConformance):
    """Every kind the memory service has."""

    kinds = some_of(MemoryShuffleService.capabilities.kinds, 2)
    clog_limit = 4 << 20
    request_timeout = REQUEST_TIMEOUT

    @pytest.fixture
    def service(self, request: pytest.FixtureRequest) -> Iterator[MemoryHarness]:
        """One application per test, gone after it."""
        harness = MemoryHarness(request.node.name)
        yield harness
        harness.close()
        assert request.node.name not in live_applications()
