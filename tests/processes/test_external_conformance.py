# SPDX-License-Identifier: Apache-2.0
"""The service `external` keeps the promises of blocking partitions, over TLS to a service process of each host."""

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
