# SPDX-License-Identifier: Apache-2.0
"""The service `spark_ess` keeps the promises of blocking partitions, over Spark's own unmodified shuffle service.

In plain text, and, where all cases are tried, encrypted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from effort import THOROUGH, some_of
from ess_harness import EssHarness
from ess_process import EssProcess
from penstock.services.spark_ess import SparkEssShuffleService
from penstock.services.spark_ess.engine import SEGMENTS
from penstock.testing.conformance import LOSES_A_HOST, ShuffleServiceConformance
from underway import listed

pytestmark = pytest.mark.processes

SECRET = "the cluster's secret"

PATIENCE = {False: 10, True: 4}
"""A host that is lost is asked again for so many seconds, by readers and by the master; the test of that has less."""


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
def applications(ess: EssProcess, cipher: str) -> Iterator[dict[bool, EssHarness]]:
    """The applications of the suite, the patient and the other one; they leave no file."""
    conf = {"spark.penstock.ess.secret": SECRET, "spark.penstock.ess.cipher": cipher}
    with contextlib.ExitStack() as stack:
        found = {}
        for short, patience in PATIENCE.items():
            conf["spark.penstock.ess.retryTimeout"] = f"{patience}s"
            conf["spark.penstock.ess.requestTimeout"] = f"{patience - 1}s"
            found[short] = EssHarness(ess, f"app-20260101-000{short:d}", dict(conf))
            stack.callback(found[short].close)
        yield found
    assert not listed(ess.folder, "*/*/penstock/*/shuffle_*")
    assert not listed(ess.folder, "*/*/penstock/*writing-*")


class TestSparkEss(ShuffleServiceConformance):
    """The kinds that are complete before they are read. All are kept the same way, so one stands for two."""

    kinds = some_of(SparkEssShuffleService.capabilities.kinds, 2)
    request_timeout = 2.0

    @pytest.fixture
    def service(self, request: pytest.FixtureRequest, applications: dict[bool, EssHarness]) -> Iterator[EssHarness]:
        """A shared application."""
        yield (application := applications[request.node.originalname == LOSES_A_HOST])
        application.forget_hosts()
