# SPDX-License-Identifier: Apache-2.0
"""Every test leaves nothing behind, layers run in their order, and a run that is told to end still says how it went.

A test that leaves something (`holdings` says what is looked at) gets a few seconds for what is on its way out, then
fails at its teardown. Tests marked `spark` share one session, so they are checked together, at the end of the run,
like the run as a whole. If several pytest processes share the work, each of them checks its own part.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.csv as csv
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

import effort
import endings
import java_starts
import layers
from effort import examples
from holdings import RUN_FOLDER, Holdings, first_use, leaks_since, processes
from lakes import catalog, delta, iceberg  # noqa: F401 - fixtures
from penstock.job.core.master_core import MasterCore
from sessions import USUAL, Sessions

# A machine may be busy: what is slow is not wrong.
# The cases are those of each run of this tree, but for runs of all cases: their finds become tests.
settings.register_profile(
    "house", deadline=None, max_examples=examples(100), derandomize=not effort.THOROUGH, print_blob=True
)
settings.load_profile("house")
if (
    not effort.THOROUGH
):  # else numbers and texts of our modules are among the cases, of those that happen to be loaded
    providers._get_local_constants = lambda: providers._local_constants

MasterCore.is_checked = True

java_starts.start_soon()


@pytest.fixture(scope="session", autouse=True)
def nothing_left_by_the_run() -> Iterator[None]:
    """The whole run, Spark's part included, leaves nothing."""
    first_use(lambda: csv.read_csv(io.BytesIO(b"a\n1\n")))  # Arrow keeps a pipe for signals from then on
    before = Holdings.now()
    yield
    if leaks := leaks_since(before):
        pytest.fail("the test run left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture(autouse=True)
def nothing_left_by_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves nothing; those that share a Spark session are checked at the end of the run."""
    if request.node.get_closest_marker("spark") is not None:
        yield
        return
    before = Holdings.now()
    yield
    if leaks := leaks_since(before):
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    """The Spark sessions of this process; all is stopped at its end."""
    sessions = Sessions()
    yield sessions
    sessions.close()


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> Any:
    """The session of most files: local, eight slots."""
    return sessions.of(USUAL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cheap answers come early; the dearest ones only where all cases are tried."""
    if not effort.THOROUGH:
        items[:] = [item for item in items if item.get_closest_marker("thorough") is None]
    layers.in_order(items)


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules stay to the end: no collection of garbage looks at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Files in the order of the layers, each to one process."""
    return layers.file_by_file(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """A run says what its layers took, and how it went in any case."""
    if _is_worker(config):
        config.option.basetemp = _shorter(Path(config.option.basetemp))
        given = config.workerinput
        process = int(given["workerid"].removeprefix("gw"))
        config.args = layers.each_another_first(config.args, process, given["workercount"])
    else:
        config.pluginmanager.register(layers.LayerTimes(), "layer-times")
    config.pluginmanager.register(layers.ProcessorTimes(has_threads=_is_worker(config)), "processor-times")
    config.pluginmanager.register(endings.Endings(config), "endings")
    endings.end_as_if_interrupted()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The run's temporary folder goes with the run, and so does what leaked (it has been reported by now)."""
    for pid in processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(RUN_FOLDER, ignore_errors=True)


def _shorter(folder: Path) -> Path:
    """A worker's temporary folder under its number alone: tests put Unix sockets there, whose paths are short."""
    return folder.with_name(folder.name.removeprefix("popen-gw"))


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
