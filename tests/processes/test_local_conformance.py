# SPDX-License-Identifier: Apache-2.0
"""The local service passes the conformance suite, with real environment processes, sockets and shared memory.

The tests of a class share one application and the environments of the hosts `a` and `b`. After each test both must
hold nothing, and other hosts end with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effort import some_of
from local_harness import LocalHarness, idle_behind, started
from penstock.attachment.attachment import Attachment
from penstock.services.local import LocalShuffleService
from penstock.shuffle import PartitionKind
from penstock.testing.conformance import ShuffleServiceConformance
from penstock.testing.conformance_hybrid import HybridConformance
from penstock.testing.conformance_overtaking import OvertakingConformance
from penstock.testing.conformance_streams import StreamConformance

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def hosts() -> Iterator[LocalHarness]:
    """The application of the first class."""
    yield from started(LocalHarness("conformance"))


class TestLocalService(StreamConformance, OvertakingConformance, ShuffleServiceConformance):
    """Every kind the local service has in this version."""

    # Of the approximate kind readers and producers outlive each other, which is the opposite of what is asked here.
    kinds = some_of([kind for kind in LocalShuffleService.capabilities.kinds if not kind.reattaches], 2)
    clog_limit = 16 << 20
    request_timeout = 10.0

    @pytest.fixture
    def service(self, hosts: LocalHarness) -> Iterator[LocalHarness]:
        """The shared application, idle after the test."""
        yield from idle_behind(hosts)


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


@pytest.fixture(scope="module")
def little_hosts() -> Iterator[LocalHarness]:
    """The application of the second class."""
    yield from started(LittleMemoryHarness("conformance-little-memory"))


class TestLocalServiceWithLittleMemory(HybridConformance):
    """Hybrid partitions in eight segments: nearly everything goes through the disk."""

    kinds = some_of((PartitionKind.HYBRID_FULL, PartitionKind.HYBRID_SELECTIVE), 2)
    clog_limit = 16 << 20
    call = ShuffleServiceConformance.call
    exchange = ShuffleServiceConformance.exchange
    pytest_generate_tests = ShuffleServiceConformance.pytest_generate_tests

    @pytest.fixture
    def service(self, little_hosts: LocalHarness) -> Iterator[LocalHarness]:
        """The shared application, idle after the test."""
        yield from idle_behind(little_hosts)
