# SPDX-License-Identifier: Apache-2.0
"""A standalone cluster whose Worker has Spark's shuffle service: executors come and go, and rows stay.

Dynamic allocation is on, from no executor to one with two slots, or to two where all cases are tried.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import penstock
from endless_jobs import Action
from external_process import ExternalProcess
from penstock import client
from penstock.errors import PlanError, SettingError
from penstock.spark.runtime import SparkRuntime
from penstock.testing import DEADLINE, wait_until
from session_probe import conf, mark, marks
from sessions import Kind, Sessions
from standalone import StandaloneCluster
from underway import below, listed, of_this_run

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

ROWS = 20_000
PRODUCERS = 4
DYNAMIC = (
    ("spark.dynamicAllocation.enabled", "true"),
    ("spark.dynamicAllocation.minExecutors", "0"),
    ("spark.dynamicAllocation.maxExecutors", "2"),
    ("spark.dynamicAllocation.executorIdleTimeout", "60s"),
    ("spark.shuffle.service.enabled", "true"),
    ("spark.penstock.shuffle.service", "spark_ess"),
    ("spark.executor.cores", "2"),
    ("spark.executor.memory", "512m"),
    ("spark.penstock.network.memory", "64m"),
    ("spark.log.level", "OFF"),  # killed executors are no news
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """The cluster of this file."""
    cluster = StandaloneCluster(tmp_path_factory.mktemp("standalone"), cores=4)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def host_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalProcess]:
    """Penstock's own service on that host; nothing of the session is left there in the end."""
    service = ExternalProcess(tmp_path_factory.mktemp("external"))
    yield service
    assert service.stop() == 0
    assert len(service.folders()) <= PRODUCERS, "nothing but the result that a test has kept by name"


@pytest.fixture
def spark(cluster: StandaloneCluster, host_service: ExternalProcess, sessions: Sessions) -> Any:
    """The session on it."""
    services = (
        ("spark.shuffle.service.port", str(cluster.shuffle_port)),
        ("spark.penstock.external.port", str(host_service.port)),
        ("spark.penstock.external.socket", str(host_service.socket)),
    )
    return sessions.of(Kind(cluster.url, 4, (*DYNAMIC, *services)))


@pytest.fixture(scope="module", autouse=True)
def _session_ends_first(
    cluster: StandaloneCluster, host_service: ExternalProcess, sessions: Sessions
) -> Iterator[None]:
    """The session ends before its cluster and services do; the application's folder goes with it."""
    yield
    sessions.stop()
    wait_until(lambda: not listed(cluster.local, "*/*/*/penstock"), "the Worker removes the folder")


def producing(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A stage that counts its attempts."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark(f"{folder}/producers")
        yield from batches

    return stage


def held(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A stage that counts its attempts, and reads when it is told to."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark(f"{folder}/consumers")
        pause, end = threading.Event(), time.monotonic() + DEADLINE
        while not Path(folder, "go").exists() and time.monotonic() < end:
            pause.wait(0.05)
        yield from batches

    return stage


def job(spark: Any, folder: Path) -> Any:
    """Rows by key from four producers to two consumers, as a lazy result."""
    stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, PRODUCERS)).mapInArrow(producing(str(folder)), "id long")
    return stream.keyBy("id", numPartitions=2).mapInArrow(held(str(folder)), "id long").toDF()


def kill_hosts(spark: Any, cluster: StandaloneCluster) -> None:
    """Kill the executors with all their Python processes and environments, and remove all of their files."""
    application = SparkRuntime.of(spark)._application.name
    victims = [child for executor in cluster.executors() for child in (executor, *below(executor.pid))]
    victims += of_this_run(lambda process: {"penstock.environment", application} <= set(process.cmdline()))
    assert len(victims) > 2
    for victim in victims:
        if victim.is_running():
            victim.kill()
    psutil.wait_procs(victims, DEADLINE)
    for folder in listed(cluster.local, "*/*/blockmgr-*"):
        shutil.rmtree(folder, ignore_errors=True)


def test_executors_that_are_killed_take_no_rows_along(spark: Any, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Killed between producing and reading: consumers run again, and no producer does."""
    assert not cluster.executors(), "nobody has asked for anything yet"
    action = Action(job(spark, tmp_path).count)
    wait_until(lambda: marks(tmp_path / "consumers") or action.ended, "a consumer waits")
    produced = len(marks(tmp_path / "producers"))  # fewer tasks read the partitions where one executor has come
    assert 0 < produced <= PRODUCERS, action.outcome
    kill_hosts(spark, cluster)
    (tmp_path / "go").touch()
    assert action.wait(DEADLINE) == ROWS
    assert len(marks(tmp_path / "producers")) == produced


def test_a_result_outlives_executors_and_the_service(spark: Any, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """It is read again after both were killed and the Worker was started anew; nothing runs again for it."""
    (tmp_path / "go").touch()
    frame = job(spark, tmp_path)
    assert frame.count() == ROWS
    before = len(marks(tmp_path / "producers")), len(marks(tmp_path / "consumers"))
    kill_hosts(spark, cluster)
    cluster.kill_worker()
    cluster.start_worker()
    assert frame.distinct().count() == ROWS
    assert (len(marks(tmp_path / "producers")), len(marks(tmp_path / "consumers"))) == before


def test_a_host_service_keeps_rows_through_kills_of_all_that_made_them(
    spark: Any, cluster: StandaloneCluster, host_service: ExternalProcess, tmp_path: Path
) -> None:
    """Executors, environments and the service are killed between producing and reading: no producer runs again."""
    with conf(spark, {"spark.penstock.shuffle.service": "external"}):
        action = Action(job(spark, tmp_path).count)
        wait_until(lambda: marks(tmp_path / "consumers") or action.ended, "a consumer waits")
        produced = len(marks(tmp_path / "producers"))
        assert 0 < produced <= PRODUCERS, action.outcome
        assert len(host_service.folders()) >= produced
        kill_hosts(spark, cluster)
        host_service.kill()
        host_service.start()
        (tmp_path / "go").touch()
        assert action.wait(DEADLINE) == ROWS
        assert len(marks(tmp_path / "producers")) == produced


def test_a_persisted_stream_with_a_name_is_read_by_that_name(
    spark: Any, host_service: ExternalProcess, tmp_path: Path
) -> None:
    """The service keeps it when the stream is unpersisted, also for a client without Spark, which replaces it.

    A service that can't, and an unknown name, are errors.
    """
    (tmp_path / "go").touch()
    rows = penstock.fromDataFrame(spark.range(0, ROWS, 1, PRODUCERS)).mapInArrow(producing(str(tmp_path)), "id long")
    with pytest.raises(PlanError, match="keeps no results by name"):
        rows.persist(name="numbers", service="spark_ess")
    assert rows.persist(name="numbers", service="external").count() == ROWS
    produced = len(marks(tmp_path / "producers"))
    assert rows.filter("id < 10").count() == 10
    rows.unpersist()
    again = penstock.readPersisted(spark, "numbers")
    assert sorted(row.id for row in again.filter("id < 100").collect()) == list(range(100))
    assert len(marks(tmp_path / "producers")) == produced
    assert host_service.folders()
    with pytest.raises(PlanError, match="nothing is kept under the name 'letters'"):
        penstock.readPersisted(spark, "letters")
    place = {"spark.penstock.external.port": str(host_service.port)}
    with client.connect(host_service.socket, conf=place) as service:
        read = service.read("numbers").read_all()
        assert sorted(read["id"].to_pylist()) == list(range(ROWS)), "a client reads what the job has kept"
        with service.write("numbers", read.schema, partitions=2) as writer:
            writer.write(read.slice(0, 10), partition=0)
            writer.write(read.slice(10, 5), partition=1)
    assert penstock.readPersisted(spark, "numbers").count() == 15, "and the other way round"


def test_a_service_that_would_lose_rows_is_refused(spark: Any) -> None:
    """With dynamic allocation on, `local` is refused, and the error names what to use."""
    with conf(spark, {"spark.penstock.shuffle.service": "local"}), pytest.raises(SettingError, match="spark_ess"):
        penstock.fromDataFrame(spark.range(10)).keyBy("id").agg(n=("id", "count")).toDF()
