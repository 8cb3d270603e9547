# SPDX-License-Identifier: Apache-2.0
"""Two executors with an environment process each: the data goes over TCP, one connection each way.

Runs Spark's `local-cluster` in a driver of its own. The fair scheduler is tried in another.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.spark

_SECONDS = 200


@contextlib.contextmanager
def _spark_home() -> Iterator[Path]:
    """PySpark's own folder; what a cluster leaves in `work` goes."""
    import pyspark

    home = Path(pyspark.__file__).parent
    work = home / "work"
    before = set(work.iterdir()) if work.exists() else set()
    yield home
    for path in set(work.iterdir()) - before if work.exists() else ():
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        work.rmdir()


def _run(script: str, *arguments: str, seconds: float = _SECONDS, **environ: str) -> tuple[dict[str, Any], Path]:
    """Run a driver; the JSON object it prints last, and its temporary folder."""
    own = Path(tempfile.mkdtemp(prefix="c-"))
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    env = {**os.environ, "TMPDIR": str(own), "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**env, **environ},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1]), own


CLUSTER = """
import dataclasses, json, os, signal, socket, sys, threading, time
from pathlib import Path
import grpc, psutil
import pyarrow as pa
import session_probe, endless_jobs
from session_probe import wait_until
from endless_jobs import Action
from pyspark import cloudpickle
from pyspark.sql import SparkSession, functions as f
for module in (session_probe, endless_jobs, sys.modules["__main__"]):
    cloudpickle.register_pickle_by_value(module)
import penstock
from penstock.link.calls import GetStatistics
from penstock.services.local import attach
from penstock.link import control
from penstock.link.master import Challenge, Authenticate, Heartbeat, Listen, OpenResult, RegisterTask, TaskFinished
from penstock.spark.runtime import SparkRuntime

folder = sys.argv[1]
out = {}
conf = {
    "spark.task.cpus": "0.25", "spark.executor.memory": "512m", "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false", "spark.penstock.environment.scope": "executor",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.penstock.network.memory": "64m", "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.penstock.restart.strategy": "none",
}
builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("cluster")
for key, value in conf.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
runtime = SparkRuntime.of(spark)
settings = runtime.settings()
tracker = spark.sparkContext._jsc.sc().statusTracker()
wait_until("both executors", lambda: runtime.total_slots() == 8, 60)
out["slots"] = runtime.total_slots()

def executors():
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("CoarseGrainedExecutorBackend" in part for part in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            pass
    return sorted(found)

def environments():
    launch = runtime._application.launch(settings)
    return {pid: attach(dataclasses.replace(launch, scope_key=str(pid))) for pid in executors()}

def figures():
    found = {}
    for pid, attachment in environments().items():
        found[pid] = attachment.ask(GetStatistics(), 10).figures
        attachment.close()
    return found

def job(rows=20000, n=4):
    return penstock.fromDataFrame(spark.range(0, rows, 1, 4)).keyBy("id", numPartitions=n)

# 1. rows are right, whatever the number of tasks and jobs: one connection per pair and direction
source = spark.range(0, 20000, 1, 4).withColumn("k", f.concat(f.lit("k"), f.col("id") % 999))
ours = penstock.repartition(source, 4, "k").withColumn("p", f.spark_partition_id())
theirs = source.repartition(4, "k").withColumn("p", f.spark_partition_id())
out["same_places"] = sorted(ours.select("id", "p").collect()) == sorted(theirs.select("id", "p").collect())
out["hosts"] = len(executors())
for _ in range(3):
    job(n=2).run()
parts = job(n=4).mapInArrow(lambda batches: batches, "id long")
frame = parts.toDF()
out["count"] = frame.count()
out["sum"] = frame.agg(f.sum("id")).first()[0]
before = figures()
out["one_reader"] = frame.coalesce(1).count()
after = figures()
out["environments"] = [
    {name: int(item[name]) for name in ("connections_opened", "connections_accepted", "remote_bytes_in")}
    for item in after.values()
]
kept = parts.persist()
out["persisted"] = [kept.toDF().count(), kept.keyBy("id", numPartitions=7).agg(n=("id", "count")).toDF().count()]
out["persisted_on"] = len({d.environment for d in runtime.persisted.find(kept.branches[0]).held.present})
kept.unpersist()
out["read_over_tcp"] = sum(after[pid]["remote_bytes_in"] - before[pid]["remote_bytes_in"] for pid in before)

# 2. peers without the secret, while a job runs
go = Path(folder, "go")
def slowly(batches):
    import time
    for batch in batches:
        end = time.monotonic() + 60
        while not go.exists() and time.monotonic() < end:
            yield batch.slice(0, 0)
            time.sleep(0.01)
        Path(folder, "went").touch()
        yield batch

held = penstock.fromDataFrame(spark.range(0, 5000, 1, 4)).mapInArrow(slowly, "id long").keyBy("id", numPartitions=4)
held = held.agg(n=("id", "count"), total=("id", "sum")).toDF()
action = Action(lambda: (held.count(), held.agg(f.sum("n"), f.sum("total")).first()))
wait_until("the job runs", lambda: len(tracker.getActiveJobIds()) >= 2, 60)
links = environments()
launch = runtime._application.launch(settings)
wrong = bytes(32)

def closed(connection):
    connection.settimeout(10)
    try:
        while connection.recv(4096):
            pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False

def intrude(connection):
    from penstock.link.handshake import Handshake, Role
    shake = Handshake(Role.CLIENT, wrong, "intruder", "test")
    connection.settimeout(10)
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
    except (ConnectionError, Exception) as error:
        return True
    return False

refused = []
for attachment in links.values():
    host, _, port = attachment.address.removeprefix("tcp://").rpartition(":")
    for junk in (b"GET / HTTP/1.1\\r\\n\\r\\n" * 10, bytes(200), b"PSTK" + bytes(300)):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(junk)
            refused.append(closed(connection))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(attachment.rendezvous + "/s")
            connection.sendall(junk)
            refused.append(closed(connection))
    with socket.create_connection((host, int(port)), 10) as connection:
        refused.append(intrude(connection))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(attachment.rendezvous + "/s")
        refused.append(intrude(connection))
    attachment.close()
answers = []
with grpc.insecure_channel(launch.master) as channel:
    for method in (RegisterTask.METHOD, OpenResult.METHOD, Heartbeat.METHOD, TaskFinished.METHOD):
        call = channel.unary_unary(f"/{control.SERVICE}/{method}")
        answers.append(control.unpack(call(control.pack({"result": "r1"}), timeout=10)))
        answers.append(control.unpack(call(control.pack({}), timeout=10,
                                           metadata=((control.SESSION_HEADER, "0" * 64),))))
    call = channel.unary_unary(f"/{control.SERVICE}/{Challenge.METHOD}")
    def hello(message):
        return {"timeout": 10, "metadata": ((control.HELLO_HEADER, control.pack(message)),)}
    nonce = control.unpack(call(b"", **hello({})))["nonce"]
    mine = control.nonce()
    call = channel.unary_unary(f"/{control.SERVICE}/{Authenticate.METHOD}")
    answers.append(control.unpack(call(b"", **hello({
        "nonce": nonce, "client_nonce": mine, "role": "environment", "identity": "intruder",
        "proof": control.proof(wrong, "environment", nonce, mine, "intruder")}))))
    stream = channel.unary_stream(f"/{control.SERVICE}/{Listen.METHOD}")
    answers.append(control.unpack(next(iter(stream(control.pack({}), timeout=10)))))
out["refused"] = refused
out["answers"] = [json.loads(json.dumps(item, default=str)) for item in answers]
go.touch()
count, row = action.wait(60)
out["unharmed"] = [count, *row]

# 3. an executor's JVM is killed in mid-run
go.unlink()
stream = penstock.fromDataFrame(spark.range(0, 1000, 1, 2)).mapInArrow(endless_jobs.endless(folder), "id long")
stream = stream.keyBy("id", numPartitions=2).mapInArrow(endless_jobs.watching(folder), "id long")
action = Action(stream.toDF().count)
wait_until("both ends run", lambda: endless_jobs.running(Path(folder)), 60)
began = time.monotonic()
os.kill(executors()[0], signal.SIGKILL)
error = action.wait(60)
out["killed"] = [action.ended - began, str(error)]
out["ended"] = Path(folder, "ended").exists()
wait_until("the executor was replaced", lambda: runtime.total_slots() == 8, 60)
wait_until("nothing runs", lambda: not len(tracker.getActiveJobIds()), 60)
out["again"] = job().toDF().count()
spark.stop()
print(json.dumps(out))
"""


def test_two_executors(tmp_path: Path) -> None:
    """Right rows over TCP; one connection per pair and direction; intruders refused; a killed executor is told."""
    with _spark_home() as home:
        out, own = _run(CLUSTER, str(tmp_path), SPARK_HOME=str(home))
    print(json.dumps(out, indent=1)[:3000])
    assert out["slots"] == 8
    assert out["hosts"] == 2
    assert out["same_places"]
    assert (out["count"], out["sum"], out["one_reader"]) == (20000, 20000 * 19999 // 2, 20000)
    for item in out["environments"]:
        assert item["connections_opened"] == 1, "one connection per peer, however many channels and jobs"
        assert item["connections_accepted"] == 1
        assert item["remote_bytes_in"] > 0
    assert out["read_over_tcp"] > 10_000 * 8 // 2, "a reader on one host reads the other host's partitions"
    assert out["persisted"] == [20000, 20000], "one task reads what is persisted on both hosts"
    assert out["persisted_on"] == 2
    assert out["refused"] == [True] * len(out["refused"])
    for answer in out["answers"]:
        assert "AuthenticationError" in json.dumps(answer), answer
    assert out["unharmed"] == [5000, 5000, 5000 * 4999 // 2]
    seconds, error = out["killed"]
    assert seconds < 15
    assert "lost" in error
    assert not out["ended"], "a consumer saw a clean end"
    assert out["again"] == 20000
    assert not list(own.glob("penstock-*/*"))


SCHEDULING = """
import json, sys, threading, time
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
import penstock
import session_probe, endless_jobs
from session_probe import wait_until
from endless_jobs import Action
from pyspark import cloudpickle
for module in (session_probe, endless_jobs, sys.modules["__main__"]):
    cloudpickle.register_pickle_by_value(module)
from penstock.spark.session import build_session

folder, mode = sys.argv[1:]
out = {}
spark = build_session("scheduling", 6, {"spark.scheduler.mode": mode, "spark.penstock.shuffle.mode": "pipelined"})
probe = session_probe.SessionProbe(spark)
spark.range(1).count()
# One row group is one task, so a job needs one slot more than its numPartitions.
rows = str(Path(folder, "rows.parquet"))
pq.write_table(pa.table({"id": pa.array(range(1000), pa.int64())}), rows)

def held(name):
    go = Path(folder, "go-" + name)
    def stage(batches):
        import time
        for batch in batches:
            Path(folder, "started-" + name).touch()
            end = time.monotonic() + 60
            while not go.exists() and time.monotonic() < end:
                yield batch.slice(0, 0)
                time.sleep(0.01)
            yield batch
    return stage

def job(name, pool, n):
    def act():
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        stream = penstock.readParquet(spark, rows).mapInArrow(held(name), "id long")
        return stream.keyBy("id", numPartitions=n).mapInArrow(lambda batches: batches, "id long").toDF().count()
    return Action(act)

def outcome(action):
    found = action.wait(60)
    return str(found) if isinstance(found, Exception) else found

# two that fit together
both = [job("a", "one", 2), job("b", "two", 2)]
for name in "ab":
    wait_until("both run at the same time", Path(folder, "started-" + name).exists, 60)
out["together"] = [probe.slots_in_use(), len(probe.jobs())]
for name in "ab":
    Path(folder, "go-" + name).touch()
out["both"] = [outcome(action) for action in both]

# two of which one fits at a time
first = job("c", "one", 4)
wait_until("the first runs", Path(folder, "started-c").exists, 60)
second = job("d", "two", 4)
wait_until("the second is submitted", lambda: len(probe.jobs()) == 2, 60)
out["waiting"] = [probe.slots_in_use(), Path(folder, "started-d").exists()]
for name in "cd":
    Path(folder, "go-" + name).touch()
out["in_turn"] = [outcome(action) for action in (first, second)]

# one that never fits
began = time.monotonic()
error = job("e", "one", 6).wait(60)
out["never"] = [str(error), time.monotonic() - began]
spark.stop()
print(json.dumps(out))
"""


@pytest.mark.parametrize("mode", ["FAIR", "FIFO"])
def test_two_jobs_at_once(tmp_path: Path, mode: str) -> None:
    """Jobs that fit run together, one that does not waits its turn, one that never fits is refused at once."""
    out, own = _run(SCHEDULING, str(tmp_path), mode)
    assert out["together"] == [6, 2]
    assert out["both"] == [1000, 1000]
    assert out["waiting"] == [5, False]
    assert out["in_turn"] == [1000, 1000]
    message, seconds = out["never"]
    assert "needs 7 task slots at the same time, but the application has 6" in message
    assert seconds < 10
    assert not list(own.glob("penstock-*/*"))
    assert not [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("TMPDIR") == str(own)]
