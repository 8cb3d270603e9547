# SPDX-License-Identifier: Apache-2.0
"""Which idle worker gets which subtask."""

from __future__ import annotations

from collections import Counter

import pytest

from job_graphs import chain
from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.ids import SparkJobId, SparkJobKind, WorkerNumber
from penstock.job.core.slots.placing import placed
from penstock.job.core.slots.workers import Worker


def idle(hosts: str) -> list[Worker]:
    """Workers in the order in which they asked, each named by its host."""
    workers = [Worker(WorkerNumber(number), SparkJobId(SparkJobKind.WORKERS, 0)) for number in range(len(hosts))]
    for worker, host in zip(workers, hosts, strict=True):
        worker.environment = host
    return workers


def stages(*widths: int) -> list[Subtask]:
    """The subtasks of a chain of stages, in order."""
    return [
        Subtask.of("j1", vertex, index) for vertex in chain(*widths).vertices for index in range(vertex.parallelism)
    ]


@pytest.mark.parametrize("hosts", ["aaaabbbb", "abababab", "bbbbaaaa", "abbbbaaa"])
def test_each_stage_is_spread_over_the_hosts(hosts: str) -> None:
    """Of two stages with four tasks each, each host has two of either, whichever asked first."""
    found = Counter((subtask.vertex.id, worker.environment) for subtask, worker in placed(stages(4, 4), idle(hosts)))
    assert found == {(vertex, host): 2 for vertex in (0, 1) for host in "ab"}


def test_uneven_hosts_are_all_used() -> None:
    """If one host has fewer workers, the rest goes to the other; each subtask has a worker of its own."""
    pairs = list(placed(stages(2, 4), idle("aaaaab")))
    assert len({worker.number for _, worker in pairs}) == len(pairs) == 6
    first = {worker.environment for subtask, worker in pairs if subtask.vertex.id == 0}
    assert first == {"a", "b"}


def test_large_hosts() -> None:
    """64 subtasks on four hosts of 16 workers that asked host by host."""
    workers = idle("".join(host * 16 for host in "abcd"))
    found = Counter((subtask.vertex.id, worker.environment) for subtask, worker in placed(stages(32, 32), workers))
    assert set(found.values()) == {8}
