# SPDX-License-Identifier: Apache-2.0
"""A host that goes for good while a job runs whose tasks must run together: the job is planned anew for what is left.

Runs Spark's `local-cluster` in a driver of its own, and takes an executor away that nobody replaces.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

_SECONDS = 200

DRIVER = """
import sys, threading
from pathlib import Path
from pyspark import cloudpickle
from pyspark.sql import SparkSession
import penstock
import session_probe
from session_probe import wait_until
from penstock.spark.runtime import SparkRuntime

cloudpickle.register_pickle_by_value(sys.modules["__main__"])
folder = Path(sys.argv[1])
conf = {
    "spark.executor.memory": "512m", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.penstock.environment.scope": "executor", "spark.penstock.network.memory": "64m",
}
builder = SparkSession.builder.master("local-cluster[2,2,1024]").appName("lost host")
for key, value in conf.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
runtime = SparkRuntime.of(spark)
wait_until("both executors", lambda: runtime.total_slots() == 4, 60)

def held(batches):
    import threading, time
    began, pause, kept = time.monotonic(), threading.Event(), None
    for batch in batches:
        kept = batch
        yield batch
    (folder / f"begun-{time.monotonic_ns()}").touch()
    while kept is not None and not (folder / "go").exists() and time.monotonic() - began < 60:
        yield kept.slice(0, 0)
        pause.wait(0.05)

spark.range(20000).write.parquet(str(folder / "rows"))
stream = penstock.readParquet(spark, str(folder / "rows")).mapInArrow(held, "id long").keyBy("id")
counted = stream.mapInArrow(lambda batches: batches, "id long")
before = counted.plan(runtime.settings(), 4).graph
assert any(edge.kind.runs_together for edge in before.edges), "it is planned pipelined, for all four slots"
assert sum(vertex.parallelism for vertex in before.vertices) == 4

found = []
thread = threading.Thread(target=lambda: found.append(counted.toDF().count()))
thread.start()
wait_until("both producers", lambda: len(list(folder.glob("begun-*"))) == 2, 60)
scala = spark.sparkContext._jsc.sc()
gone = scala.getExecutorIds().apply(0)
assert scala.killExecutors(spark.sparkContext._jvm.PythonUtils.toSeq([gone]))
wait_until("one executor less", lambda: runtime.total_slots() == 2, 30)
(folder / "go").touch()
thread.join(60)
assert not thread.is_alive(), "the job waits for slots that are gone"
assert found == [20000], found
print("right")
"""


def test_a_pipelined_job_that_lost_a_host_goes_on_with_the_slots_left(tmp_path: Path) -> None:
    """Nobody asked for pipelined, so it is planned again for two slots, within a minute, and ends with all rows."""
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)], env=env, capture_output=True, text=True, timeout=_SECONDS
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    assert done.stdout.splitlines()[-1] == "right"
