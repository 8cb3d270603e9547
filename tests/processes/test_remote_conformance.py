# SPDX-License-Identifier: Apache-2.0
"""The service `remote` keeps the promises of blocking partitions, over a manager and workers that are processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effort import some_of
from penstock.services.remote import RemoteShuffleService
from penstock.testing.conformance import ShuffleServiceConformance
from penstock.testing.waiting import wait_until
from remote_cluster import RemoteCluster
from remote_harness import RemoteHarness

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteCluster]:
    """A service of more workers than there are tests that kill one."""
    found = RemoteCluster(tmp_path_factory.mktemp("remote"), len(TestRemote.kinds) + 1)
    yield found
    found.close()


@pytest.fixture(scope="module")
def application(cluster: RemoteCluster) -> Iterator[RemoteHarness]:
    """The application of the suite; it leaves no file."""
    harness = RemoteHarness(cluster, "app-20260101-0001")
    yield harness
    harness.close()
    wait_until(lambda: not cluster.files(), "all files to go")


class TestRemote(ShuffleServiceConformance):
    """The kinds that are complete before they are read. All are kept the same way, so one stands for three."""

    kinds = some_of(RemoteShuffleService.capabilities.kinds, 3)
    request_timeout = 2.0

    @pytest.fixture
    def service(self, application: RemoteHarness) -> Iterator[RemoteHarness]:
        """The shared application."""
        yield application
        application.forget_hosts()
