# SPDX-License-Identifier: Apache-2.0
"""A standalone cluster on two hosts, whose executors are killed with all they have in the middle of a job.

`unshare -rnm python two_hosts.py SERVICE FOLDER`: a program, for the network is its own and ends with it. Each host
has namespaces of network, mounts and name. `/tmp` and `/dev/shm` are its own, and hold all that it writes. `/mnt` is
FOLDER on all of them: there stages say that they ran, and wait. The last line printed is the outcome, in JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark import cloudpickle

import penstock
from endless_jobs import Action
from ess_process import java_command
from penstock.connection.principals import key_line
from penstock.spark.session import open_session
from penstock.testing import DEADLINE
from penstock.testing.waiting import wait_until
from underway import listed

ROWS = 400_000
PRODUCERS = 4
DRIVER = "10.1.0.1"
SHARED = Path("/mnt")
SECRET = "the cluster's secret"
MASTER_PORT, SHUFFLE_PORT, PAGE_PORT, EXTERNAL_PORT, METRICS_PORT, MANAGER_PORT = 7077, 7337, 8081, 7447, 7500, 7450
ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": SECRET,
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
}
"""Penstock refuses a shuffle service off loopback that asks nobody who is there. This one encrypts, too."""
PROCESSES: list[subprocess.Popen[bytes]] = []


class Host:
    """A host of its own, which the first process there holds."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.address = name, f"10.1.0.{number}"
        ready = "mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && echo ready && exec sleep infinity"
        holder = subprocess.Popen(
            ["unshare", "-n", "-m", "-u", "sh", "-c", f"hostname {name} && {ready}"], stdout=subprocess.PIPE
        )
        PROCESSES.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        self.pid = holder.pid
        self.root = Path(f"/proc/{holder.pid}/root")
        self.kept = {holder.pid}
        run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", f"of-{name}")
        run("ip", "link", "set", f"of-{name}", "netns", str(holder.pid))
        run("ip", "link", "set", f"to-{name}", "master", "hosts")
        run("ip", "link", "set", f"to-{name}", "up")
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", f"of-{name}")
        self.run("ip", "link", "set", f"of-{name}", "up")
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *words: str) -> list[str]:
        """A command that runs on it."""
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "--", *words]

    def run(self, *words: str) -> None:
        """Run a command on it."""
        run(*self.command(*words))

    def start(self, name: str, word: str, *words: str) -> None:
        """Start a process on it that outlives executors."""
        self.kept.add(start(f"{self.name}-{name}", word, self.command(*words), self.address))

    def lose(self, is_kept: Callable[[Path], bool]) -> int:
        """Kill all but what was started, and remove all files but those that are kept; the processes killed."""
        space, killed = Path(f"/proc/{self.pid}/ns/mnt").readlink(), 0
        for process in listed(Path("/proc"), "[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "ns/mnt").readlink() == space and int(process.name) not in self.kept:
                    os.kill(int(process.name), 9)
                    killed += 1
        for place in ("tmp", "dev/shm"):
            for folder, _, files in os.walk(self.root / place, topdown=False):
                for file in files:
                    path = Path(folder, file)
                    if not is_kept(path.relative_to(self.root)):
                        path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        return killed


def run(*words: str) -> None:
    """Run a command."""
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=DEADLINE)


def start(name: str, word: str, command: list[str], address: str) -> int:
    """Start a process, and wait until it says a word; its number."""
    log = SHARED / f"{name}.log"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    environment |= {"SPARK_LOCAL_IP": address, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    environment |= {"SPARK_SCALA_VERSION": "2.13", "PENSTOCK_REMOTE_SECRET": SECRET}
    environment["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd="/"
        )
    PROCESSES.append(process)

    def is_up() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        return word in log.read_text(errors="replace")

    wait_until(is_up, f"{name} to say {word!r}")
    return process.pid


def spark(kind: str, conf: dict[str, str], *arguments: str) -> list[str]:
    """A Master or a Worker."""
    options = [f"-D{key}={value}" for key, value in {"spark.log.level": "INFO", **ENCRYPTED, **conf}.items()]
    return [*java_command(), *options, f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]


def network() -> None:
    """The network of the hosts."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "hosts", "type", "bridge")
    run("ip", "addr", "add", f"{DRIVER}/24", "dev", "hosts")
    run("ip", "link", "set", "hosts", "up")


def cluster() -> list[Host]:
    """The network, and a Master and two Workers on it."""
    network()
    master = spark("Master", {}, "--host", DRIVER, "--port", str(MASTER_PORT), "--webui-port", "0")
    start("master", "I have been elected leader", master, DRIVER)
    hosts = [Host("a", 2), Host("b", 3)]
    conf = {"spark.shuffle.service.enabled": "true", "spark.shuffle.service.port": str(SHUFFLE_PORT)}
    conf["spark.local.dir"] = "/tmp/local"
    sink = "spark.metrics.conf.shuffleService.sink.csv"
    conf |= {f"{sink}.class": "org.apache.spark.metrics.sink.CsvSink", f"{sink}.period": "1"}
    for host in hosts:
        (host.root / "tmp/local").mkdir()
        (SHARED / f"metrics-{host.name}").mkdir()
        conf[f"{sink}.directory"] = f"/mnt/metrics-{host.name}"
        place = ["--host", host.address, "--webui-port", str(PAGE_PORT), "--work-dir", "/tmp/work"]
        size = ["--cores", "2", "--memory", "2g", f"spark://{DRIVER}:{MASTER_PORT}"]
        host.start("worker", "Successfully registered with master", *spark("Worker", conf, *place, *size))
    return hosts


def with_external(hosts: list[Host]) -> dict[str, str]:
    """Penstock's own service on each host."""
    ours = [sys.executable, "-m", "penstock.cli", "service", "external", "--dir", "/tmp/external", "--reserve", "1m"]
    metrics = ["--metrics-port", str(METRICS_PORT), "--metrics-host"]
    for host in hosts:
        place = ["--host", host.address, "--port", str(EXTERNAL_PORT), *metrics, host.address]
        host.start("external", "serving ", *ours, *place)
    return {"spark.penstock.external.socket": "/tmp/external/service.sock"}


def with_remote(hosts: list[Host]) -> dict[str, str]:
    """A manager and two workers beside the driver: storage apart from compute."""
    keys = SHARED / "keys"
    keys.touch(0o600)
    keys.write_text(key_line("alice") + "\n")
    ours = [sys.executable, "-m", "penstock.cli", "service", "remote"]
    place = ["--host", DRIVER, "--keys", str(keys), "--dir"]
    manager = [*ours, "manager", *place, str(SHARED / "manager"), "--port", str(MANAGER_PORT)]
    start("manager", "listens at", manager, DRIVER)
    for number, _ in enumerate(hosts):
        folder, metrics = str(SHARED / f"remote-{number}"), ["--metrics-port", str(METRICS_PORT + number)]
        where = ["--manager", f"{DRIVER}:{MANAGER_PORT}", "--reserve", "1m", *metrics]
        start(f"remote-{number}", "listens at", [*ours, "worker", *place, folder, *where], DRIVER)
    return {
        "spark.penstock.remote.manager": f"{DRIVER}:{MANAGER_PORT}",
        "spark.penstock.access.keyFile": str(keys),
        "spark.penstock.access.user": "alice",
    }


STARTS: dict[str, Callable[[list[Host]], dict[str, str]]] = {"external": with_external, "remote": with_remote}


def is_kept(path: Path) -> bool:
    """Tell whether a service's contract keeps a file of a host: its own, those in Spark's folder, its register."""
    parts = path.parts
    is_local = parts[:2] == ("tmp", "local")
    return parts[:2] == ("tmp", "external") or (
        is_local and ("penstock" in parts or "registeredExecutors" in str(path))
    )


def served(service: str, hosts: list[Host]) -> int:
    """The bytes that the service has given to readers, as it counts them."""
    if service == "spark_ess":
        files = listed(SHARED, "metrics-*/*blockTransferRateBytes.csv")
        return sum(int(path.read_text().split()[-1].split(",")[1]) for path in files)
    places = {
        "external": [f"{host.address}:{METRICS_PORT}" for host in hosts],
        "remote": [f"127.0.0.1:{METRICS_PORT + number}" for number, _ in enumerate(hosts)],
    }
    counter = re.compile(r"^penstock_(?:external_given|remote_worker_read)_bytes_total(?:{.*})? (\S+)$", re.MULTILINE)
    pages = [page(f"http://{place}/metrics") for place in places.get(service, [])]
    return int(sum(float(value) for text in pages for value in counter.findall(text)))


def all_served(service: str, hosts: list[Host]) -> int:
    """The bytes that were served, once the figure is there: Spark writes it each second."""
    found, end = served(service, hosts), time.monotonic() + DEADLINE
    while service != "local" and found < 2 * ROWS * 8 and time.monotonic() < end:
        threading.Event().wait(0.5)
        found = served(service, hosts)
    return found


def page(address: str) -> str:
    """The text of a page."""
    with urllib.request.urlopen(address, timeout=DEADLINE) as answer:  # noqa: S310 - it is the test's own
        return str(answer.read().decode())


def awaiting(kind: str, word: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A stage that says which host it runs on, and goes on when it is told to."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path("/mnt", f"{kind}-{socket.gethostname()}-{time.time_ns()}").touch()
        pause, end = threading.Event(), time.monotonic() + DEADLINE
        while not Path("/mnt", word).exists() and time.monotonic() < end:
            pause.wait(0.05)
        yield from batches

    return stage


def attempts(kind: str) -> Counter[str]:
    """The attempts of a stage, by host."""
    return Counter(path.name.split("-")[1] for path in listed(SHARED, f"{kind}-?-*"))


def session_conf(service: str) -> dict[str, str]:
    """The session: executors come and go, but with `local`."""
    is_local = service == "local"
    return {
        **ENCRYPTED,
        "spark.master": f"spark://{DRIVER}:{MASTER_PORT}",
        "spark.driver.host": DRIVER,
        "spark.driver.bindAddress": DRIVER,
        "spark.dynamicAllocation.enabled": str(not is_local).lower(),
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.shuffle.service.enabled": "true",
        "spark.shuffle.service.port": str(SHUFFLE_PORT),
        "spark.executor.cores": "2",
        "spark.executor.memory": "512m",
        "spark.penstock.network.memory": "64m",
        "spark.penstock.shuffle.service": service,
        "spark.log.level": "OFF",
    }


def lost_between(service: str, hosts: list[Host], session: Any) -> dict[str, object]:
    """Run a job in which executors are killed between producing and consuming; its outcome."""
    for number in range(PRODUCERS):  # files, as all tasks of a DataFrame run again where one is lost
        ids = np.arange(number, ROWS, PRODUCERS)
        pq.write_table(pa.table({"id": ids}), SHARED / f"rows-{number}.parquet")
    numbers = penstock.readParquet(session, str(SHARED / "rows-*.parquet"), numPartitions=PRODUCERS)
    stream = numbers.mapInArrow(awaiting("produced", "produce"), "id long")
    keyed = stream.keyBy("id", numPartitions=2, mode="blocking")
    action = Action(keyed.mapInArrow(awaiting("consumed", "consume"), "id long").toDF().count)

    def until(what: str, holds: Callable[[], object]) -> None:
        wait_until(lambda: bool(holds() or action.ended), what)
        assert holds(), action.outcome

    until("producers on both hosts", lambda: len(attempts("produced")) == len(hosts))
    (SHARED / "produce").touch()
    until("a consumer", lambda: attempts("consumed"))
    produced, before = attempts("produced"), served(service, hosts)
    victims = hosts[:1] if service == "local" else hosts
    killed = [host.lose(is_kept) for host in victims]
    (SHARED / "consume").touch()
    rows = action.wait(DEADLINE)
    again = attempts("produced") - produced
    return {
        "rows": rows if isinstance(rows, int) else str(rows),
        "produced": produced,
        "again": sum(again.values()),
        "killed": killed,
        "served": all_served(service, hosts) - before,
    }


def main(service: str, folder: str) -> None:
    """Run it."""
    run("mount", "--make-rprivate", "/")
    run("mount", "--bind", folder, str(SHARED))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    os.environ["SPARK_LOCAL_IP"] = DRIVER
    try:
        hosts = cluster()
        conf = STARTS.get(service, lambda _: {})(hosts)
        with open_session("two-hosts", 4, {**session_conf(service), **conf}) as session:
            outcome = lost_between(service, hosts, session)
        print(json.dumps(outcome))
    finally:
        for process in reversed(PROCESSES):
            process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
