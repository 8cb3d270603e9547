# SPDX-License-Identifier: Apache-2.0
"""The remote service under many applications, many strangers, and one that wants too much: nothing stays."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import client_scripts
from effort import THOROUGH
from penstock import client
from penstock.connection.handshake import Service
from penstock.connection.principals import key_line
from penstock.errors import QuotaError
from penstock.remote.manager_state import ManagerState
from penstock.remote.state_log import read_records
from penstock.testing import DEADLINE
from penstock.testing.conformance import ConformanceExchange
from penstock.testing.conformance_exchange import WantedPartition
from penstock.testing.waiting import wait_until
from remote_cluster import USER, RemoteCluster, RemoteProcess
from remote_harness import RemoteHarness
from stored_rows import BATCHES, KIND, ROWS, rows_left, written
from strangers import bad_connections

pytestmark = pytest.mark.processes

CLIENTS = 100 if THOROUGH else 4
STRANGERS = 10_000 if THOROUGH else 200
MEMORY = 48 << 20
"""Bytes that a process may have more afterwards: a worker's 32 MiB for rows, and some for those who had come."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteCluster]:
    """A manager and two workers that have served a client already, so what they need once is there."""
    found = RemoteCluster(tmp_path_factory.mktemp("remote"), options=["--memory", "32m"])
    come_and_go(found, 1)
    yield found
    found.close()


def come_and_go(cluster: RemoteCluster, number: int) -> None:
    """So many client processes at once, each an application: they write, read and leave, and all goes well."""
    where = json.dumps({"address": cluster.manager.address, "key": cluster.keys.read_text().strip()})
    command = [sys.executable, "-c", client_scripts.COME_AND_GO, where]
    clients = [subprocess.Popen(command) for _ in range(number)]
    assert [client.wait(DEADLINE) for client in clients] == [0] * number


class Figures:
    """The memory and the open files of each process of a service."""

    def __init__(self, processes: list[RemoteProcess]) -> None:
        self._processes = {each.log.stem: psutil.Process(each.pid) for each in processes}
        self._before = self._now()

    def _now(self) -> dict[str, tuple[int, int]]:
        return {name: (each.memory_info().rss, each.num_fds()) for name, each in self._processes.items()}

    def check(self) -> None:
        """They are as they were, or nearly."""

        def few_files() -> bool:
            return all(now[1] <= before[1] + 2 for before, now in self._pairs().values())

        wait_until(few_files, "connections and files to be closed")
        grown = {name: now[0] - before[0] for name, (before, now) in self._pairs().items()}
        print({name: f"{more / 2**20:+.1f} MiB" for name, more in grown.items()})
        assert max(grown.values()) < MEMORY, grown

    def _pairs(self) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
        return {name: (self._before[name], now) for name, now in self._now().items()}


def state_of(cluster: RemoteCluster) -> ManagerState:
    """The manager's knowledge, as a manager that is started now would have it."""
    state = ManagerState()
    for record in read_records(Path(cluster.manager.folder) / "manager.log"):
        state.apply(record)
    return state


@pytest.mark.thorough
def test_many_applications_come_and_go(cluster: RemoteCluster) -> None:
    """They register, write, read and leave at once: no file, no record and no memory is left of them."""
    figures = Figures([cluster.manager, *cluster.workers])
    come_and_go(cluster, CLIENTS)
    wait_until(lambda: not cluster.files(), "the workers to remove what was released")
    state = state_of(cluster)
    assert not state.datasets
    assert not state.partitions
    assert not state.over
    figures.check()


def test_strangers_cost_nothing(cluster: RemoteCluster) -> None:
    """Bad connections by the hundred to manager and worker: nothing is told, nothing grows, and clients go on."""
    processes = [cluster.manager, cluster.workers[0]]
    figures = Figures(processes)
    for process in processes:
        bad_connections(process.port, STRANGERS, Service.REMOTE, f"{USER}/stranger/client")
        assert "refused a connection from" in process.log.read_text()
    come_and_go(cluster, 1)
    figures.check()


SCHEMA = pa.schema([("noise", pa.binary())])


def noise(nbytes: int) -> pa.RecordBatch:
    """Rows of so many bytes that no compression makes fewer."""
    return pa.record_batch([pa.array([os.urandom(1 << 16) for _ in range(nbytes >> 16)], pa.binary())], schema=SCHEMA)


def test_an_application_keeps_no_more_than_its_quota(tmp_path: Path) -> None:
    """One that wants more hears so, others write on, what it releases is room again; a restart changes nothing."""
    cluster = RemoteCluster(tmp_path / "remote", 1, ["--quota", "8m"], ["--rejoin", "30s"])
    connect = functools.partial(client.connect, cluster.manager.address, key=cluster.keys.read_text().strip())
    try:
        with connect() as service:
            with service.write_part(SCHEMA) as writer:
                writer.write(noise(6 << 20))
            part = writer.finish()
            for starts in (2, 3):
                with (
                    pytest.raises(QuotaError, match=r"worker \w+ at 127\.0\.0\.1:\d+: .*--quota"),
                    service.write_part(SCHEMA) as more,
                ):
                    more.write(noise(4 << 20))
                cluster.workers[0].kill()
                cluster.workers[0].start()
                wait_until(lambda starts=starts: cluster.times_known() == starts, "the manager to know it again")
            with connect() as another, another.write_part(SCHEMA) as theirs:
                theirs.write(noise(6 << 20))
            assert service.read_parts([part]).read_all().num_rows == 96
            service.release([part])

            def is_written() -> bool:
                try:
                    with service.write_part(SCHEMA) as again:
                        again.write(noise(6 << 20))
                except QuotaError:
                    return False
                return True

            wait_until(is_written, "what was released to be room")
        wait_until(lambda: not cluster.files(), "the files to be removed")
    finally:
        cluster.close()


def test_what_a_user_keeps_by_name_counts_for_him(tmp_path: Path) -> None:
    """His next application hears so, also after a restart of the worker; another user writes on.

    A result of the same name takes its place, and then there is room again.
    """
    cluster = RemoteCluster(tmp_path / "remote", 1, ["--user-quota", "8m"], ["--rejoin", "60s"])
    with cluster.keys.open("a") as keys:
        keys.write(key_line("bob") + "\n")
    mine, bobs = cluster.keys.read_text().splitlines()
    connect = functools.partial(client.connect, cluster.manager.address)

    def keep(key: str, name: str, nbytes: int) -> None:
        with connect(key=key) as service, service.write(name, SCHEMA, 1) as writer:
            writer.write(noise(nbytes))

    try:
        keep(mine, "numbers", 6 << 20)
        for starts in (2, 3):
            with pytest.raises(QuotaError, match=r"worker \w+ at 127\.0\.0\.1:\d+: .*by name.*--user-quota"):
                keep(mine, "letters", 4 << 20)
            cluster.workers[0].kill()
            cluster.workers[0].start()
            wait_until(lambda starts=starts: cluster.times_known() == starts, "the manager to know it again")
        keep(bobs, "numbers", 6 << 20)
        with connect(key=mine) as service:
            assert service.read("numbers").read_all().num_rows == 96
        keep(mine, "numbers", 1 << 20)

        def is_kept() -> bool:
            try:
                keep(mine, "letters", 6 << 20)
            except QuotaError:
                return False
            return True

        wait_until(is_kept, "the room of the former result to be free")
    finally:
        cluster.close()


@pytest.mark.parametrize("window", ["2m", "3m", "5m"])
def test_a_small_window_of_a_gate_is_enough(cluster: RemoteCluster, window: str) -> None:
    """Credit that goes back in parts never leaves a worker without what its next block needs."""
    harness = RemoteHarness(cluster, f"window-{window}", {"spark.penstock.remote.readWindow": window})
    with closing(harness), closing(ConformanceExchange(harness, asyncio.run)) as exchange:
        spread = written(exchange)
        assert rows_left(exchange.consume([(spread.descriptor, 0, 4)])) == ROWS * BATCHES


def test_a_row_that_is_longer_than_the_window_comes_whole(cluster: RemoteCluster) -> None:
    """A task has all blocks of a row of 100 MB before it gives anything; their credit goes back all the same."""
    harness = RemoteHarness(cluster, "long-row", {"spark.penstock.remote.readWindow": "2m"})
    schema = pa.schema([("text", pa.large_binary())])
    batch = pa.record_batch([pa.array([b"x" * 100_000_000], pa.large_binary())], schema=schema)
    with closing(harness), closing(ConformanceExchange(harness, asyncio.run)) as exchange:
        producer = exchange.produce(WantedPartition(KIND, schema, subpartitions=4))
        producer.writer.write(batch, 1)
        producer.writer.finish()
        found = exchange.consume([(producer.descriptor, 0, 4)], schema).drain()
        assert [item.batch for item in found if item.batch is not None] == [batch]
