# SPDX-License-Identifier: Apache-2.0
"""Services for months: round after round of applications come and go, and from some round on nothing grows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

import client_scripts
from external_process import ExternalProcess
from penstock.testing.waiting import wait_until
from remote_cluster import RemoteCluster

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

ROUNDS = 12
PROCESSES, TIMES = 10, 3
"""A round is 30 applications: ten at once, three times."""
WAIT = 900
"""Seconds for a round, which takes ten of a machine that has nothing else to do."""
SLACK = 3 << 20
"""Bytes, between the most of the second and of the last third of all rounds. Each application that left a buffer of a
connection behind would make ten times as much."""


def come_and_go(where: Mapping[str, object]) -> None:
    """A round of applications, each of which writes, reads and leaves; all goes well."""
    command = [sys.executable, "-c", client_scripts.COME_AND_GO, json.dumps({**where, "times": TIMES})]
    clients = [subprocess.Popen(command) for _ in range(PROCESSES)]
    try:
        assert [client.wait(WAIT) for client in clients] == [0] * PROCESSES
    finally:
        for client in clients:
            client.kill()
            client.wait()


def check_flat(come: Callable[[], None], pids: Mapping[str, int]) -> None:
    """After a warm-up of four rounds these processes have no more memory, threads or files from round to round."""
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    rounds: dict[str, list[tuple[int, int, int]]] = {name: [] for name in pids}
    for _ in range(ROUNDS):
        come()
        for name, process in processes.items():
            rounds[name].append((process.memory_info().rss, process.num_threads(), process.num_fds()))
    third = ROUNDS // 3
    for name, figures in rounds.items():
        megabytes = " ".join(f"{rss / 2**20:.1f}" for rss, *_ in figures)
        print(f"{name}: {megabytes} MiB")
        before, after = (
            tuple(map(max, zip(*part, strict=True))) for part in (figures[third:-third], figures[-third:])
        )
        allowed = before[0] + SLACK, before[1], before[2] + 2
        assert all(now <= most for now, most in zip(after, allowed, strict=True)), (name, megabytes, before, after)


def test_remote_services_stay_as_they_are(tmp_path: Path) -> None:
    """The manager and both workers, which keep rows of 30 applications in each round."""
    cluster = RemoteCluster(tmp_path / "remote", options=["--memory", "32m"])
    where = {"address": cluster.manager.address, "key": cluster.keys.read_text().strip()}

    def come() -> None:
        come_and_go(where)
        wait_until(lambda: not cluster.files(), "the workers to remove what was released")

    try:
        check_flat(come, {each.log.stem: each.pid for each in (cluster.manager, *cluster.workers)})
    finally:
        cluster.close()


def test_a_host_service_stays_as_it_is(tmp_path: Path) -> None:
    """The one process of `external`, which writes nothing itself and reads for all."""
    service = ExternalProcess(tmp_path / "s", "--reserve", "1m")
    where = {"address": str(service.socket), "conf": {"spark.penstock.external.port": str(service.port)}}

    def come() -> None:
        come_and_go(where)
        wait_until(lambda: not service.folders(), "the files to be removed")

    try:
        check_flat(come, {"external": service.pid})
    finally:
        service.close()
