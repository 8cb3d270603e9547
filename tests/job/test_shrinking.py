# SPDX-License-Identifier: Apache-2.0
"""Slots that go while a job runs: what still fits goes on, what does not is told at once, with what was lost."""

from __future__ import annotations

import pytest
from cluster import Cluster
from job_graphs import BLOCKING, HYBRID, PIPELINED, word_count

from penstock.job.core import events
from penstock.shuffle import PartitionKind
from penstock.shuffle.errors import SlotsLostError

LEFT = 2


def shrunk(kind: PartitionKind) -> Cluster:
    """A cluster of two hosts and four slots that loses one of them while two maps and two reduces run."""
    cluster = Cluster(4, ["a", "b"])
    cluster.submit(word_count(kind))
    cluster.gone = 4 - LEFT
    cluster.lose_environment("b")
    cluster.send(events.SlotsChanged(LEFT))
    return cluster


@pytest.mark.parametrize("kind", [HYBRID, BLOCKING])
def test_a_job_that_fits_into_what_is_left_goes_on(kind: PartitionKind) -> None:
    """It never gets more than the slots that are left, and ends well."""
    cluster = shrunk(kind)
    cluster.run()
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_a_region_that_fits_no_more_is_told_at_once_what_was_lost() -> None:
    """It does not wait for slots that never come, nor blame other Spark jobs."""
    cluster = shrunk(PIPELINED)
    cluster.run()
    error = cluster.ended["j1"].error
    assert isinstance(error, SlotsLostError)
    for part in ("needs 4 task slots", "of 4", "2 left", "environment b is lost (no heartbeat)", 'mode="auto"'):
        assert part in str(error)
    assert "other Spark jobs" not in str(error)


def test_a_region_that_runs_goes_on_and_is_told_when_it_must_run_again() -> None:
    """Executors that are idle may be given back while the last task of a region works: nothing is lost by that."""
    cluster = Cluster(4, ["a"])
    cluster.submit(word_count(PIPELINED))
    for place in [(0, 0), (0, 1), (1, 0)]:
        cluster.finish(*place)
    cluster.send(events.SlotsChanged(LEFT))
    assert "j1" not in cluster.ended
    cluster.lose_task(1, 1)
    assert isinstance(cluster.ended["j1"].error, SlotsLostError)


def test_a_job_that_waits_is_told_too() -> None:
    """It stands in the line for slots that are not there any more."""
    cluster = Cluster(4, ["a"])
    cluster.submit(word_count(PIPELINED))
    cluster.submit(word_count(PIPELINED), job="j2")
    cluster.send(events.SlotsChanged(LEFT))
    assert isinstance(cluster.ended["j2"].error, SlotsLostError)
