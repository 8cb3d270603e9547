# SPDX-License-Identifier: Apache-2.0
"""The service `external` keeps the promises of blocking partitions: over TLS from other hosts, and on its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effort import some_of
from external_harness import ExternalHarness
from penstock.services.external import ExternalShuffleService
from penstock.testing.conformance import ShuffleServiceConformance

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalHarness]:
    """The application of the suite; it leaves no file."""
    harness = ExternalHarness(tmp_path_factory.mktemp("external"), "app-20260101-0001", tls="always")
    yield harness
    harness.close()


class TestExternal(ShuffleServiceConformance):
    """The kinds that are complete before they are read. All are kept the same way, so one stands for the others."""

    kinds = some_of(ExternalShuffleService.capabilities.kinds[::-1], 3)
    request_timeout = 2.0

    @pytest.fixture
    def service(self, application: ExternalHarness) -> Iterator[ExternalHarness]:
        """The shared application."""
        yield application
        application.forget_hosts()


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalHarness]:
    """Writers and readers beside one service, which lends its files."""
    harness = ExternalHarness(tmp_path_factory.mktemp("lending"), "app-20260101-0002", hosts=("a",))
    harness.join("b", "a")
    yield harness
    harness.close()


class TestExternalOnOneHost(ShuffleServiceConformance):
    """Readers are lent the files; one kind stands for the others."""

    kinds = ExternalShuffleService.capabilities.kinds[:1]
    request_timeout = 2.0

    @pytest.fixture
    def service(self, neighbours: ExternalHarness) -> Iterator[ExternalHarness]:
        """The shared application."""
        yield neighbours
        neighbours.forget_hosts()
