# SPDX-License-Identifier: Apache-2.0
"""A host that loses its environment again and again is left out for a while, as long as there are others."""

from __future__ import annotations

from cluster import Cluster
from job_graphs import BLOCKING, HYBRID, PIPELINED, chain, word_count
from penstock.job.core import instructions as do
from penstock.job.core.execution.capacity import LEFT_OUT_SECONDS, LOSSES, WITHIN_SECONDS, Hosts
from penstock.settings import RestartSettings
from penstock.shuffle import PartitionKind

GOOD = "good-1-abc"


def failing(slots: int, kind: PartitionKind, hosts: tuple[str, ...] = (GOOD,)) -> Cluster:
    """A job beside whose hosts there is one more that has just lost its environment once too often."""
    cluster = Cluster(slots, [*hosts, "bad-1-abc"])
    cluster.pace = 2.0
    cluster.submit(word_count(kind), restart=RestartSettings("fixed", 100))
    for number in range(1, LOSSES + 1):
        cluster.lose_environment(f"bad-{number}-abc", f"bad-{number + 1}-abc")
        cluster.run()
    return cluster


def places(cluster: Cluster) -> set[str]:
    """The hosts on which somebody works."""
    return {task.environment.partition("-")[0] for task in cluster.tasks if task.attempt is not None}


def test_a_job_goes_on_with_the_other_hosts() -> None:
    """Workers of the failing host keep their slots and get nothing; it is said once; the job ends well."""
    cluster = failing(4, BLOCKING)
    assert [item.host for item in cluster.of(do.LeaveOut)] == ["bad"]
    assert any(task.environment.startswith("bad") for task in cluster.tasks), "its workers are there"
    while cluster.working():
        assert places(cluster) == {"good"}
        cluster.finish(*cluster.working()[0])
    assert cluster.ended["j1"].error is None


def test_it_is_used_where_a_job_needs_all_slots_or_there_is_no_other() -> None:
    """Better a host that fails than a job that waits for ever."""
    for cluster in (failing(4, PIPELINED), failing(4, BLOCKING, ())):
        assert "bad" in places(cluster)
        cluster.finish_job()
        assert cluster.ended["j1"].error is None


def test_it_is_used_where_all_others_wait_for_what_it_lost() -> None:
    """Readers hold the slots of the good hosts until a producer is there again: one that nobody else can run."""
    cluster = Cluster(3, ["good-1-abc", "bad-1-abc", "good-1-abc"])
    cluster.pace = 2.0
    cluster.submit(chain(2, 2, kinds=(HYBRID,)), restart=RestartSettings("fixed", 100))
    cluster.finish(0, 0)
    assert places(cluster) == {"good", "bad"}
    cluster.environments = ["bad-1-abc"]
    for number in range(1, LOSSES + 1):
        cluster.lose_environment(f"bad-{number}-abc", f"bad-{number + 1}-abc")
        cluster.run()
    assert cluster.of(do.LeaveOut)
    assert cluster.working() == [(0, 1), (1, 0), (1, 1)]
    cluster.finish_job()
    assert cluster.ended["j1"].error is None


def test_it_comes_back_after_a_while_and_old_losses_do_not_count() -> None:
    """Five minutes; and three losses in a day are none too many."""
    now = [0.0]
    hosts = Hosts(lambda: now[0])
    for _ in range(3 * LOSSES):
        assert hosts.lost("h-1-abc") is None
        now[0] += WITHIN_SECONDS
    told = [hosts.lost("h-1-abc") for _ in range(LOSSES)]
    assert told.count("h") == 1
    assert hosts.is_out("h-77-def")
    assert not hosts.is_out("h2-77-def")
    assert not hosts.are_fine
    now[0] += LEFT_OUT_SECONDS
    assert not hosts.is_out("h-77-def")
    assert hosts.are_fine
