# SPDX-License-Identifier: Apache-2.0
"""Two executors with an environment process each: the data goes over TCP, one connection each way.

First of the folder, so that nobody has been killed yet when connections are counted.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

import penstock
from endless_jobs import Action, endless, running, watching
from held_stages import nothing_until
from penstock.attachment.attachment import Attachment, attach
from penstock.attachment.launch import EnvironmentLaunch
from penstock.connection.certificate import Certificate
from penstock.connection.certificates import client_context
from penstock.connection.handshake import Credentials, Handshake, Role, Service
from penstock.connection.transport import split_host
from penstock.link.calls import GetStatistics
from penstock.spark import slots
from penstock.spark.runtime import SparkRuntime
from penstock.testing import DEADLINE, wait_until
from underway import below

pytestmark = pytest.mark.spark

ROWS = 20_000
WRONG = bytes(32)
"""Not the application's secret."""


class Hosts:
    """The executors of a session and their environments."""

    def __init__(self, spark: Any) -> None:
        self.runtime = SparkRuntime.of(spark)
        self.launch = self.runtime._application.launch(self.runtime.settings())

    def executors(self) -> list[int]:
        """The processes of the executors."""
        return sorted(process.pid for process in below(os.getpid(), "CoarseGrainedExecutorBackend"))

    def launches(self) -> list[EnvironmentLaunch]:
        """The launches by which the environment beside each executor is found."""
        return [dataclasses.replace(self.launch, scope_key=str(pid)) for pid in self.executors()]

    def attach(self) -> list[Attachment]:
        """An attachment to each environment."""
        return [attach(launch) for launch in self.launches()]

    def figures(self) -> list[dict[str, float]]:
        """The figures that each environment counts."""
        found = []
        for attachment in self.attach():
            found.append(attachment.ask(GetStatistics(), DEADLINE).figures)
            attachment.close()
        return found


@pytest.fixture
def hosts(cluster: Any) -> Iterator[Hosts]:
    """The hosts, where what is killed stays dead."""
    cluster.conf.set("spark.penstock.restart.strategy", "none")
    yield Hosts(cluster)
    cluster.conf.unset("spark.penstock.restart.strategy")


def numbers(spark: Any, partitions: int) -> penstock.Stream:
    """Numbers, by key."""
    return penstock.fromDataFrame(spark.range(0, ROWS, 1, 4)).keyBy("id", numPartitions=partitions)


def test_rows_and_connections(cluster: Any, hosts: Hosts) -> None:
    """Right rows over TCP, on one connection per pair and direction, however many channels and jobs."""
    assert len(hosts.executors()) == 2
    source = cluster.range(0, ROWS, 1, 4).withColumn("k", f.concat(f.lit("k"), f.col("id") % 999))
    ours = penstock.repartition(source, 4, "k").withColumn("p", f.spark_partition_id())
    theirs = source.repartition(4, "k").withColumn("p", f.spark_partition_id())
    assert sorted(ours.select("id", "p").collect()) == sorted(theirs.select("id", "p").collect())
    for _ in range(2):
        numbers(cluster, 2).run()

    def reads_from_the_other_host() -> bool:
        """Tell whether one reader fetched a part of the result; sometimes one host alone has computed it."""
        frame = numbers(cluster, 4).mapInArrow(lambda batches: batches, "id long").toDF()
        assert tuple(frame.agg(f.count("id"), f.sum("id")).first()) == (ROWS, ROWS * (ROWS - 1) // 2)
        before = hosts.figures()
        for figures in before:
            assert figures["connections_opened"] == 1
            assert figures["connections_accepted"] == 1
            assert figures["remote_bytes_in"] > 0
        assert frame.coalesce(1).count() == ROWS
        pairs = zip(hosts.figures(), before, strict=True)
        return sum(new["remote_bytes_in"] - old["remote_bytes_in"] for new, old in pairs) > ROWS * 8 // 4

    wait_until(reads_from_the_other_host, "a reader on one host reads the other host's partitions")


def test_a_young_application_waits_for_its_executors(
    cluster: Any, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the conf says are waited for; later those that are there are what there is."""
    seen = iter([0, 2, 2])
    monkeypatch.setattr(slots, "slots_now", lambda context: next(seen, 4))
    monkeypatch.setattr(slots, "REGISTRATION_SECONDS", 1e9)
    assert hosts.runtime.total_slots() == 4
    seen = iter([0, 2, 2])
    monkeypatch.setattr(slots, "REGISTRATION_SECONDS", 0.0)
    assert hosts.runtime.total_slots() == 2


def test_persisted_on_both_hosts(cluster: Any, hosts: Hosts) -> None:
    """One task reads what is persisted on both."""

    def lies_on_both() -> bool:
        """Tell whether both hosts hold a part; sometimes one host alone has computed it."""
        kept = numbers(cluster, 4).mapInArrow(lambda batches: batches, "id long").persist()
        assert kept.toDF().count() == ROWS
        assert kept.keyBy("id", numPartitions=7).agg(n=("id", "count")).toDF().count() == ROWS
        held = hosts.runtime.persisted.find(kept.branches[0]).held
        environments = {descriptor.environment for descriptor in held.present}
        kept.unpersist()
        return len(environments) == 2

    wait_until(lies_on_both, "both hosts hold a part of what is persisted")


def is_closed(connection: socket.socket) -> bool:
    """Tell whether the other side hangs up."""
    connection.settimeout(DEADLINE)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def is_refused(connection: socket.socket, service: Service) -> bool:
    """Tell whether a handshake with a wrong secret comes to nothing."""
    shake = Handshake(Role.CLIENT, service, Credentials("intruder", WRONG), "test")
    connection.settimeout(DEADLINE)
    try:
        while not shake.is_done:
            connection.sendall(shake.outgoing())
            data = b""
            while len(data) < shake.needed:
                piece = connection.recv(shake.needed - len(data))
                if not piece:
                    return True
                data += piece
            shake.receive(data)
    except Exception:  # noqa: BLE001 - however it is refused
        return True
    return False


def doors(
    launch: EnvironmentLaunch, attachment: Attachment, *, speak_tls: bool
) -> Iterator[tuple[socket.socket, Service]]:
    """New connections: to an environment by TCP and by the host's own socket, and to the JobMaster."""
    context = client_context(Certificate())
    for address, service in ((attachment.address, Service.PARTITIONS), (f"tls://{launch.master}", Service.MASTER)):
        plain = socket.create_connection(split_host(address, "tls"), DEADLINE)
        with context.wrap_socket(plain) if speak_tls else plain as connection:
            yield connection, service
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(launch.place().socket))
        yield connection, Service.TASKS


def test_intruders(cluster: Any, hosts: Hosts, tmp_path: Path) -> None:
    """Peers without the secret are refused at every door, and the job that runs meanwhile is unharmed."""
    go = tmp_path / "go"

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from nothing_until(go, batch)
            yield batch

    held = penstock.fromDataFrame(cluster.range(0, 5000, 1, 2)).mapInArrow(slowly, "id long")
    held = held.keyBy("id", numPartitions=2).agg(n=("id", "count"), total=("id", "sum"))
    action = Action(held.toDF().agg(f.count("n"), f.sum("n"), f.sum("total")).first)
    tracker = cluster.sparkContext._jsc.sc().statusTracker()
    wait_until(lambda: len(tracker.getActiveJobIds()) >= 2, "the job runs")
    for launch, attachment in zip(hosts.launches(), hosts.attach(), strict=True):
        for junk in (b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(200), b"PSTK" + bytes(300)):
            for connection, _ in doors(launch, attachment, speak_tls=False):
                connection.sendall(junk)
                assert is_closed(connection)
        for connection, service in doors(launch, attachment, speak_tls=True):
            assert is_refused(connection, service)
        attachment.close()
    go.touch()
    assert tuple(action.wait(DEADLINE)) == (5000, 5000, 5000 * 4999 // 2)


@pytest.mark.thorough
def test_killed_executor(cluster: Any, hosts: Hosts, tmp_path: Path) -> None:
    """The job fails and says that it was lost; nobody sees a clean end; the next job has the new executor."""
    stream = penstock.fromDataFrame(cluster.range(0, 1000, 1, 2)).mapInArrow(endless(str(tmp_path)), "id long")
    stream = stream.keyBy("id", numPartitions=2).mapInArrow(watching(str(tmp_path)), "id long")
    action = Action(stream.toDF().count)
    wait_until(lambda: running(tmp_path), "both ends run")
    os.kill(hosts.executors()[0], signal.SIGKILL)
    error = action.wait(DEADLINE)
    assert "lost" in str(error)
    assert not (tmp_path / "ended").exists(), "a consumer saw a clean end"
    wait_until(lambda: hosts.runtime.total_slots() == 4, "the executor was replaced")
    assert numbers(cluster, 4).toDF().count() == ROWS
