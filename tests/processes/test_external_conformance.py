# SPDX-License-Identifier: Apache-2.0
"""The service `external` keeps the promises of blocking partitions: over TLS from other hosts, and on its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from effort import some_of
from external_harness import ExternalHarness
from penstock.services.external import ExternalShuffleService
from penstock.testing.conformance import LOSES_A_HOST, ShuffleServiceConformance

pytestmark = pytest.mark.processes

PATIENCE = {False: 10, True: 4}
"""The seconds of a service, unless a test loses a host."""


Applications = dict[bool, ExternalHarness]


@pytest.fixture(scope="module")
def applications(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applications]:
    """The applications of the suite, the patient and the other one; they leave no file."""
    with contextlib.ExitStack() as stack:
        found = {}
        for short, patience in PATIENCE.items():
            folder = tmp_path_factory.mktemp("external")
            found[short] = ExternalHarness(folder, f"app-20260101-000{short:d}", tls="always", patience=patience)
            stack.callback(found[short].close)
        yield found


class TestExternal(ShuffleServiceConformance):
    """The kinds that are complete before they are read. All are kept the same way, so one stands for the others."""

    kinds = some_of(ExternalShuffleService.capabilities.kinds[::-1], 3)
    request_timeout = 2.0

    @pytest.fixture
    def service(self, request: pytest.FixtureRequest, applications: Applications) -> Iterator[ExternalHarness]:
        """A shared application."""
        yield (application := applications[request.node.originalname == LOSES_A_HOST])
        application.forget_hosts()


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applications]:
    """Writers and readers beside one service, which lends its files."""
    with contextlib.ExitStack() as stack:
        found = {}
        for short, patience in PATIENCE.items():
            folder = tmp_path_factory.mktemp("lending")
            found[short] = ExternalHarness(folder, f"app-20260101-001{short:d}", hosts=("a",), patience=patience)
            found[short].join("b", "a")
            stack.callback(found[short].close)
        yield found


class TestExternalOnOneHost(ShuffleServiceConformance):
    """Readers are lent the files; one kind stands for the others."""

    kinds = ExternalShuffleService.capabilities.kinds[:1]
    request_timeout = 2.0

    @pytest.fixture
    def service(self, request: pytest.FixtureRequest, neighbours: Applications) -> Iterator[ExternalHarness]:
        """A shared application."""
        yield (application := neighbours[request.node.originalname == LOSES_A_HOST])
        application.forget_hosts()
