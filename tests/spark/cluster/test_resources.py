# SPDX-License-Identifier: Apache-2.0
"""Stages with resources of their own: their tasks run in Spark's profile beside the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

import penstock
from effort import with_all
from penstock.errors import SlotsError
from penstock.spark.runtime import SparkRuntime

pytestmark = pytest.mark.spark

ROWS = 1000


def wide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row: the cores of the task, and how many rows it got."""
    from pyspark import TaskContext

    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch([pa.array([TaskContext.get().cpus()]), pa.array([rows])], names=["cpus", "rows"])


def wide_stage(spark: Any, producers: int, partitions: int | None, mode: str) -> penstock.Stream:
    """Its tasks ask for two cores each."""
    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(2)).build
    keyed = penstock.fromDataFrame(spark.range(0, ROWS, 1, producers)).keyBy(
        "id", numPartitions=partitions, mode=mode
    )
    return keyed.mapInArrow(wide, "cpus long, rows long").withResources(profile)


@pytest.mark.parametrize("mode", ["pipelined", with_all("hybrid"), with_all("blocking")])
def test_a_stage_of_wide_tasks(cluster: Any, mode: str) -> None:
    """Its task has two cores in every mode; the rows are right."""
    assert [tuple(row) for row in wide_stage(cluster, 2, 1, mode).toDF().collect()] == [(2, ROWS)]


def test_auto_knows_the_buffers_of_all_environments(cluster: Any) -> None:
    """Two executors with 64 MB each; with one environment for a host, one; without the setting, at least 256 MB."""
    runtime = SparkRuntime.of(cluster)
    settings = runtime.settings()
    each = (64 << 20) // settings.network.segment_size
    assert runtime.buffers(settings) == 2 * each
    shared = replace(settings, environment=replace(settings.environment, scope="host"))
    assert runtime.buffers(shared) == each
    assert runtime.buffers(replace(settings, network=replace(settings.network, memory=0))) == 2 * 4 * each


@pytest.mark.thorough
def test_waves_of_wide_tasks(cluster: Any) -> None:
    """If there are more than fit, they run one after the other."""
    found = wide_stage(cluster, 1, 3, "hybrid").toDF().collect()
    assert [row.cpus for row in found] == [2, 2, 2]
    assert sum(row.rows for row in found) == ROWS


@pytest.mark.thorough
def test_as_many_wide_tasks_as_the_bytes_ask_for(cluster: Any) -> None:
    """If nobody asks for a number, it is chosen when the bytes are known, and each of so many has its task."""
    cluster.conf.set("spark.penstock.blocking.targetBytes", "2k")
    try:
        found = wide_stage(cluster, 2, None, "blocking").toDF().collect()
    finally:
        cluster.conf.unset("spark.penstock.blocking.targetBytes")
    assert len(found) > 2
    assert sum(row.rows for row in found) == ROWS


def test_more_wide_tasks_than_fit(cluster: Any) -> None:
    """Pipelined, they would have to run at the same time: refused."""
    with pytest.raises(SlotsError, match="3 tasks that need 2 cpus each at the same time"):
        wide_stage(cluster, 1, 3, "pipelined").run()
