# SPDX-License-Identifier: Apache-2.0
"""The service `spark_ess` keeps the promises of blocking partitions, over Spark's own unmodified shuffle service.

In plain text, and, where all cases are tried, encrypted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effort import THOROUGH, some_of
from ess_harness import EssHarness
from ess_process import EssProcess
from penstock.services.spark_ess import SparkEssShuffleService
from penstock.services.spark_ess.engine import SEGMENTS
from penstock.testing.conformance import ShuffleServiceConformance
from underway import listed

pytestmark = pytest.mark.processes

SECRET = "the cluster's secret"

_IMPATIENT = {"spark.penstock.ess.retryTimeout": "10s", "spark.penstock.ess.requestTimeout": "9s"}
"""A host that is lost is asked again for so long, by readers and by the master, and nothing else happens then."""


@pytest.fixture(scope="module", params=["none", SEGMENTS] if THOROUGH else ["none"])
def cipher(request: pytest.FixtureRequest) -> str:
    """The cipher of its connections."""
    return str(request.param)


@pytest.fixture(scope="module")
def ess(cipher: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EssProcess]:
    """A service that asks for a secret."""
    conf = {"spark.authenticate": "true", "spark.authenticate.secret": SECRET}
    if cipher != "none":
        conf |= {"spark.network.crypto.enabled": "true", "spark.network.crypto.cipher": cipher}
    process = EssProcess(tmp_path_factory.mktemp("ess"), conf)
    yield process
    process.close()


@pytest.fixture(scope="module")
def application(ess: EssProcess, cipher: str) -> Iterator[EssHarness]:
    """The application of the suite; it leaves no file."""
    conf = {"spark.penstock.ess.secret": SECRET, "spark.penstock.ess.cipher": cipher, **_IMPATIENT}
    harness = EssHarness(ess, "app-20260101-0001", conf)
    yield harness
    harness.close()
    assert not listed(ess.folder, "*/*/penstock/*/shuffle_*")
    assert not listed(ess.folder, "*/*/penstock/*writing-*")


class TestSparkEss(ShuffleServiceConformance):
    """The kinds that are complete before they are read. All are kept the same way, so one stands for two."""

    kinds = some_of(SparkEssShuffleService.capabilities.kinds, 2)
    request_timeout = 2.0

    @pytest.fixture
    def service(self, application: EssHarness) -> Iterator[EssHarness]:
        """The shared application."""
        yield application
        application.forget_hosts()
