# SPDX-License-Identifier: Apache-2.0
"""A session over the remote service: exchanges and results are pushed to workers, beside an exchange of `local`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import functions as sql

import penstock
from ess_process import free_port
from penstock import client
from penstock.errors import PlanError, SettingError
from penstock.testing import wait_until
from remote_cluster import RemoteCluster
from sessions import Kind, Sessions

pytestmark = pytest.mark.spark

ROWS = 200_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteCluster]:
    """A manager and two workers."""
    found = RemoteCluster(tmp_path_factory.mktemp("service"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def session(sessions: Sessions, service: RemoteCluster) -> Iterator[Any]:
    """A session that names the service; no row of it is left when it has stopped."""
    conf = {**service.conf(), "spark.penstock.shuffle.service": "remote"}
    yield sessions.of(Kind("local[4]", 4, tuple(conf.items())))
    sessions.stop()
    wait_until(lambda: not service.files(), "the rows go with their application")


@pytest.mark.thorough
def test_a_job_over_two_services_with_kills(session: Any, service: RemoteCluster) -> None:
    """The manager is killed and started again, then a worker is killed: every action has the right rows."""
    frame = session.range(0, ROWS, 1, 4).select((sql.col("id") % 1000).alias("k"), "id")
    sums = penstock.fromDataFrame(frame).keyBy("k", numPartitions=4).agg(n=("id", "sum"))
    stream = sums.rebalance(2, service="local").mapInArrow(lambda batches: batches, "k long, n long")
    expected = frame.groupBy("k").agg(sql.sum("id").alias("n")).orderBy("k").collect()
    result = stream.toDF()
    assert result.orderBy("k").collect() == expected
    assert service.files()
    service.manager.kill()
    service.manager.start()
    assert result.orderBy("k").collect() == expected
    service.add_worker()
    service.workers[0].kill()
    assert stream.toDF().orderBy("k").collect() == expected
    assert result.orderBy("k").collect() == expected, "a lost result is made again"


def test_a_persisted_stream_with_a_name(session: Any, service: RemoteCluster) -> None:
    """It is read by that name, also by a client without Spark, which replaces it, and the other way round."""
    rows = penstock.fromDataFrame(session.range(0, ROWS, 1, 4)).mapInArrow(lambda batches: batches, "id long")
    assert rows.persist(name="numbers", service="remote").count() == ROWS
    assert rows.filter("id < 10").count() == 10
    rows.unpersist()
    assert penstock.readPersisted(session, "numbers", service="remote").filter("id < 100").count() == 100
    with pytest.raises(PlanError, match="nothing is kept under the name 'letters'"):
        penstock.readPersisted(session, "letters", service="remote")
    with client.connect(service.manager.address, key=service.keys.read_text().strip()) as other:
        read = other.read("numbers").read_all()
        assert sorted(read["id"].to_pylist()) == list(range(ROWS)), "a client reads what the job has kept"
        with other.write("numbers", read.schema, partitions=2) as writer:
            writer.write(read.slice(0, 10), partition=0)
            writer.write(read.slice(10, 5), partition=1)
        assert penstock.readPersisted(session, "numbers", service="remote").count() == 15
        with other.write("numbers", read.schema):
            pass  # so that no row is left


def test_what_it_lacks_is_refused(session: Any) -> None:
    """A mode by its name, a stream by the service."""
    with pytest.raises(SettingError, match="has no mode 'pipelined': it has auto, blocking"):
        penstock.fromDataFrame(session.range(3)).keyBy("id", mode="pipelined").toDF()
    rate = penstock.readStream(session).format("rate").load().keyBy("value").count()
    with pytest.raises(PlanError, match="the shuffle service 'remote', which carries no streams"):
        rate.writeStream.format("noop").start()


def test_local_stands_in_for_a_manager_that_is_away(
    session: Any, service: RemoteCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It does if the user allows that, and says so."""
    session.conf.set("spark.penstock.remote.fallback", "local")
    try:
        stream = penstock.fromDataFrame(session.range(100)).rebalance(2)
        assert stream.count() == 100
        assert not caplog.records
        session.conf.set("spark.penstock.remote.manager", f"127.0.0.1:{free_port()}")
        assert stream.count() == 100
        assert "the service 'local' takes its place" in caplog.text
        stream.explain()
    finally:
        session.conf.set("spark.penstock.remote.manager", service.manager.address)
        session.conf.unset("spark.penstock.remote.fallback")
