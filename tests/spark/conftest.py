# SPDX-License-Identifier: Apache-2.0
"""Functions of this folder's tests go to Spark's workers as code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import endless_jobs
import held_stages
import memory_again
import rows_without_end
import session_probe
import underway


@pytest.fixture(scope="module", autouse=True)
def _functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers can't import the tests' modules, so their functions go to them as code."""
    from pyspark import cloudpickle

    modules = (request.module, session_probe, endless_jobs, held_stages, rows_without_end, memory_again, underway)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
