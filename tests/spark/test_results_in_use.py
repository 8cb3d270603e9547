# SPDX-License-Identifier: Apache-2.0
"""Results of `toDF()` go when no object of Spark's refers to them, and stay as long as one does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from effort import some_of
from penstock.spark import results_in_use
from penstock.testing import wait_until
from session_probe import SessionProbe
from underway import listed

pytestmark = pytest.mark.spark

ROWS = 1000
ACTIONS = 10
HELD = 4
"""So many results are held in these tests before the JVM is told to collect."""


def repartitioned(spark: Any) -> Any:
    """A result's DataFrame."""
    return penstock.repartition(spark.range(0, ROWS, 1, 2), 2, "id")


def descriptors(pid: int) -> int:
    """The number of files that a process has open."""
    return len(listed(Path(f"/proc/{pid}/fd")))


def held(spark: Any) -> Any:
    """The results in use of the application."""
    from penstock.spark.runtime import SparkRuntime

    return SparkRuntime.of(spark)._application.results


@pytest.mark.thorough
def test_many_actions_leave_nothing(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, the JobMaster's results, the environment's and the driver's descriptors: no more than before."""
    probe = SessionProbe(spark)
    monkeypatch.setattr(results_in_use, "RESULTS", HELD)
    monkeypatch.setattr(held(spark), "results_limit", HELD)
    repartitioned(spark).count()
    files, results = probe.files(), probe.results()
    pids = (probe.environment_pid(), os.getpid())
    before = [descriptors(pid) for pid in pids]
    actions = 0

    def went_unasked() -> bool:
        """Tell whether the JVM was told to collect, and told of what it found, which takes it as long as it likes."""
        nonlocal actions
        assert repartitioned(spark).count() == ROWS
        actions += 1
        return actions >= ACTIONS and probe.results() < results + actions

    wait_until(went_unasked, "results went without being asked to")

    def are_gone() -> bool:
        probe.collect()
        return probe.results() <= results + 2  # Spark keeps the plans that it saw last

    wait_until(are_gone, "results that nobody can read are gone")
    # Files go a little later than the results that they belong to.
    wait_until(lambda: len(probe.files()) <= len(files) + 4, "files of results that are gone are gone")
    assert [descriptors(pid) for pid in pids] <= [count + 8 for count in before]


HOLDERS: dict[str, Callable[[Any, Any], tuple[object, Callable[[], int]]]] = {
    "frame": lambda _, frame: (frame, frame.count),
    "derived": lambda _, frame: ((rows := frame.where("id >= 0").select("id")), rows.count),
    "cached": lambda _, frame: ((rows := frame.cache()), rows.count),
    "rdd": lambda _, frame: ((rows := frame.rdd), rows.count),
    "joined": lambda _, frame: ((rows := frame.join(frame, "id")), rows.count),
    "view": lambda spark, frame: (
        frame.createOrReplaceTempView("kept"),
        lambda: spark.table("kept").count(),
    ),
    "other session": lambda spark, frame: (
        frame.createOrReplaceGlobalTempView("kept_by_all"),
        lambda: spark.newSession().table("global_temp.kept_by_all").count(),
    ),
}


@pytest.mark.thorough
def test_what_is_referred_to_stays(spark: Any) -> None:
    """By a DataFrame, one made of it, the cache, an RDD, a self-join, a view: readable after all else has gone."""
    probe = SessionProbe(spark)
    kept = {}
    for how, hold in some_of(list(HOLDERS.items()), 2):
        before = set(probe.files())
        frame = repartitioned(spark)
        assert frame.count() == ROWS
        made = set(probe.files()) - before
        holder, count = hold(spark, frame)
        assert count() == ROWS
        kept[how] = (made, holder, count)
    del frame, holder
    planned = repartitioned(spark).where("id >= 0").select("id")
    probe.collect()
    files = set(probe.files())
    assert [how for how, (made, _, _) in kept.items() if not made & files] == []
    assert {how: count() for how, (_, _, count) in kept.items()} == dict.fromkeys(kept, ROWS)
    assert planned.count() == ROWS
    spark.catalog.clearCache()
    spark.catalog.dropTempView("kept")
    spark.catalog.dropGlobalTempView("kept_by_all")


@pytest.mark.thorough
def test_bytes_count_too(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few large results go as well as many small ones."""
    probe = SessionProbe(spark)
    probe.collect()
    results = held(spark)
    monkeypatch.setattr(results_in_use, "BYTES", HELD * 8 * ROWS)
    monkeypatch.setattr(results, "bytes_limit", HELD * 8 * ROWS)
    before = len(results)
    most = 0
    for _ in range(ACTIONS):
        assert repartitioned(spark).count() == ROWS
        most = max(most, len(results) - before)
    assert most < ACTIONS
