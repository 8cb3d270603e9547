# SPDX-License-Identifier: Apache-2.0
"""Stages with resources of their own: their tasks run in Spark's profile beside the others; not in local mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

import penstock
from penstock.shuffle.errors import SettingError

pytestmark = pytest.mark.spark


def test_local_mode_refuses_resources(spark: Any) -> None:
    """One sentence, before anything starts: what was asked for, where, and what to do."""
    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(2)).build
    stream = penstock.fromDataFrame(spark.range(10)).keyBy("id", numPartitions=2)
    stream = stream.mapInArrow(lambda batches: batches, "id long").withResources(profile)
    with pytest.raises(SettingError, match=r"asks for 2 cpus per task, and Spark in local\[8\] has one kind of slot"):
        stream.run()


DRIVER = """
import json, sys
import pyarrow as pa
import penstock
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local-cluster[2,2,1024]").config("spark.ui.enabled", "false").config(
    "spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").config(
    "spark.ui.showConsoleProgress", "false").config("spark.executorEnv.PYTHONPATH", ":".join(sys.path)).getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def wide(batches):
    from pyspark import TaskContext
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch([pa.array([TaskContext.get().cpus()]), pa.array([rows])], names=["cpus", "rows"])

out = {}
profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(2)).build
for mode in ("pipelined", "hybrid", "blocking"):
    stream = penstock.fromDataFrame(spark.range(0, 1000, 1, 2)).keyBy("id", numPartitions=1, mode=mode)
    stream = stream.mapInArrow(wide, "cpus long, rows long").withResources(profile)
    out[mode] = [list(row) for row in stream.toDF().collect()]
many = penstock.fromDataFrame(spark.range(0, 1000, 1, 1)).keyBy("id", numPartitions=3, mode="hybrid")
many = many.mapInArrow(wide, "cpus long, rows long").withResources(profile)
out["waves"] = [row.cpus for row in many.toDF().collect()]
try:
    many = penstock.fromDataFrame(spark.range(10)).keyBy("id", numPartitions=3, mode="pipelined")
    many.mapInArrow(wide, "cpus long, rows long").withResources(profile).run()
except Exception as error:
    out["refused"] = str(error)
spark.stop()
print(json.dumps(out))
"""


def test_a_stage_of_wide_tasks_on_a_cluster(tmp_path: Path) -> None:
    """Its tasks have two cores each in every mode, in waves where there are more than fit; rows are right."""
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        timeout=180,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr[-4000:]
    out = json.loads(driver.stdout.splitlines()[-1])
    for mode in ("pipelined", "hybrid", "blocking"):
        assert out[mode] == [[2, 1000]], mode
    assert out["waves"] == [2, 2, 2]
    assert "3 tasks that need 2 cpus each at the same time" in out["refused"]
