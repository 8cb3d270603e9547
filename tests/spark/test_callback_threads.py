# SPDX-License-Identifier: Apache-2.0
"""Spark calls the driver's Python on threads that end: what py4j keeps for them goes, and sessions stay as they are.

`PENSTOCK_SESSION_ACTIONS=500` runs as many actions, and `-s` prints what the session holds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
from effort import with_all
from penstock.testing import wait_until
from penstock_bench.environment import own_bytes
from session_probe import SessionProbe
from underway import listed

pytestmark = pytest.mark.spark

ACTIONS = int(os.environ.get("PENSTOCK_SESSION_ACTIONS", "10"))
SLACK = 12
"""Threads and descriptors more; one for each action is more than this."""
MEGABYTE = 1 << 20


def counts(pid: int) -> tuple[int, int]:
    """Threads and open files of a process."""
    threads, files = (len(listed(Path(f"/proc/{pid}/{what}"))) for what in ("task", "fd"))
    return threads, files


def repartitioned(spark: Any) -> Any:
    """A result's DataFrame; each one is a job."""
    return penstock.repartition(spark.range(0, 100, 1, 2), 2, "id")


@pytest.mark.thorough
def test_many_actions_leave_the_session_as_it_was(spark: Any) -> None:
    """Each `toArrow` is planned on a new thread of the JVM's: threads, files and memory are what they were."""
    probe = SessionProbe(spark)
    kept = repartitioned(spark)
    kept.count()
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    own, environment = os.getpid(), probe.environment_pid()

    def act(times: int) -> None:
        for _ in range(times):
            assert repartitioned(spark).toArrow().num_rows == 100
        probe.collect()

    def collected() -> int:
        probe.collect()
        return len(probe.files())

    act(4)
    before, java_files, stored = counts(own), counts(java)[1], len(probe.files())
    sizes = own_bytes(own), own_bytes(environment)
    act(ACTIONS)
    wait_until(lambda: counts(own)[0] <= before[0] + SLACK, "threads of ended callbacks are gone")
    after = counts(own)
    grown = [(own_bytes(pid) - size) / MEGABYTE for pid, size in zip((own, environment), sizes, strict=True)]
    print(
        f"\n{ACTIONS} actions: driver {before[0]} -> {after[0]} threads, {before[1]} -> {after[1]} files,"
        f" {grown[0]:+.1f} MB; environment {counts(environment)[1]} files, {grown[1]:+.1f} MB;"
        f" JVM {java_files} -> {counts(java)[1]} files; {len(probe.files())} partitions on disk"
    )
    assert after[1] <= before[1] + SLACK
    assert counts(java)[1] <= java_files + SLACK
    assert max(grown) < 32
    wait_until(
        lambda: collected() <= stored + 4, "results that nobody can read are gone"
    )  # Spark keeps the last plan
    assert kept.count() == 100


@pytest.mark.thorough
@pytest.mark.parametrize("action", ["count", with_all("toArrow")])
def test_threads_of_the_user_leave_nothing(spark: Any, action: str) -> None:
    """A thread for each action, as a server has: with it goes its connection, here and in the JVM.

    `toArrow` with all cases: the test before this one does it often, on one thread.
    """

    def act(times: int) -> None:
        for _ in range(times):
            with ThreadPoolExecutor(1) as thread:
                assert thread.submit(ON_THE_USERS[action], repartitioned(spark)).result() == 100

    act(4)
    pids = os.getpid(), int(spark._jvm.java.lang.ProcessHandle.current().pid())
    before = [counts(pid)[1] for pid in pids]
    act(ACTIONS // 2)

    def are_gone() -> bool:
        act(1)  # it lets go of what those before it have left
        return all(counts(pid)[1] <= files + SLACK // 2 for pid, files in zip(pids, before, strict=True))

    wait_until(are_gone, "connections of ended and idle threads are gone")


@pytest.mark.thorough
def test_actions_of_several_threads_disturb_each_other_not(spark: Any) -> None:
    """Callbacks of one action close what ended ones have left, while those of others are under way."""
    gate = threading.Barrier(4)

    def act(_: int) -> int:
        gate.wait()
        return sum(repartitioned(spark).toArrow().num_rows for _ in range(2))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(act, range(4))) == [200] * 4


ON_THE_USERS: dict[str, Callable[[Any], int]] = {
    "count": lambda frame: int(frame.count()),
    "collect": lambda frame: len(frame.collect()),
    "toArrow": lambda frame: int(frame.toArrow().num_rows),
    "toPandas": lambda frame: len(frame.toPandas()),
    "toLocalIterator": lambda frame: len(list(frame.toLocalIterator())),
    "broadcast": lambda frame: int(frame.join(frame.hint("broadcast"), "id").count()),
}


@pytest.mark.thorough
@pytest.mark.parametrize("action", ON_THE_USERS)
def test_each_action_works_again_and_again(spark: Any, action: str) -> None:
    """Spark may plan it on any thread; ended ones are let go of in between."""
    for _ in range(2):
        assert ON_THE_USERS[action](repartitioned(spark)) == 100
