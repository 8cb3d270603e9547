# SPDX-License-Identifier: Apache-2.0
"""One Spark session for all tests of this folder: local, eight slots, stopped at the end of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import endless_jobs
import pytest
import session_probe

SLOTS = 8


@pytest.fixture(scope="module", autouse=True)
def _functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers can't import the tests' modules, so their functions go to them as code."""
    from pyspark import cloudpickle

    modules = (request.module, session_probe, endless_jobs)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session, built as the command line builds it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.spark.runtime import SparkRuntime
    from penstock.spark.session import build_session

    other = SparkSession.getActiveSession()
    if other is not None:
        other.stop()
    session = build_session("penstock-tests", SLOTS, {"spark.penstock.job.slotsTimeout": "20s"})
    yield session
    SparkRuntime.of(session).close()
    session.stop()
    gateway = SparkContext._gateway  # PySpark keeps its JVM until the interpreter ends; the run leaves nothing
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None
