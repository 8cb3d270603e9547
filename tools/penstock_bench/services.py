# SPDX-License-Identifier: Apache-2.0
"""Blocking exchanges through the services, in turns in one session: `local`, whose readers map files, and others.

The host service, Spark's own and a remote one run beside the session, as an operator starts them; readers fetch all
rows from their ports. Spark's exchange of the same rows runs in the same turns.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark

import penstock
from penstock.connection.principals import key_line
from penstock.errors import SettingError
from penstock.spark.java import find_java
from penstock_bench.cases import CONSUMERS, ExchangeForm, exchange_case
from penstock_bench.catalogue import BLOCKING, SERVICE_ROWS
from penstock_bench.functions import COUNT_DDL, count_rows
from penstock_bench.measure import Outcome, Say, WrongAnswerError, timed
from penstock_bench.rows import Dataset

_TURNS = 3
"""Turns for each repetition: they are short, and what is asked is a small difference."""
_START_SECONDS = 30.0
_SPARK = "Spark"
_USER = "bench"


@contextlib.contextmanager
def spark_service(folder: Path) -> Iterator[dict[str, str]]:
    """Spark's shuffle service, as its start script starts it. SettingError where none starts."""
    find_java()
    port, home = _free_port(), os.environ.get("JAVA_HOME")
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.nio", "sun.nio.ch")]
    jars = f"{Path(pyspark.__file__).parent / 'jars'}/*"
    memory = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m", f"-Dspark.shuffle.service.port={port}")
    java = str(Path(home, "bin", "java")) if home else "java"
    command = [java, *opened, *memory, "-cp", jars, "org.apache.spark.deploy.ExternalShuffleService"]
    log = folder / "spark-log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SettingError(f"no shuffle service of Spark has started: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield {"spark.penstock.ess.port": str(port)}
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def host_service(folder: Path) -> Iterator[dict[str, str]]:
    """A host service in this folder; the settings by which a session finds it. SettingError where none starts."""
    place = ["--dir", str(folder), "--host", "127.0.0.1", "--port", "0"]
    command = [sys.executable, "-m", "penstock.cli", "service", "external", *place]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield {
            "spark.penstock.external.port": _port(process, log),
            "spark.penstock.external.socket": str(folder / "service.sock"),
        }
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def remote_service(folder: Path) -> Iterator[dict[str, str]]:
    """A manager with a worker in this folder; the settings of a session. SettingError where none starts."""
    keys = folder / "keys"
    keys.touch(0o600)
    keys.write_text(key_line(_USER) + "\n")
    command = [sys.executable, "-m", "penstock.cli", "service", "remote"]
    own = {"env": {**os.environ, "PENSTOCK_REMOTE_SECRET": secrets.token_hex(16)}, "stdin": subprocess.DEVNULL}
    started: list[subprocess.Popen[bytes]] = []

    def start(role: str, *options: str) -> str:
        log = folder / f"{role}-log"
        with log.open("wb") as output:
            arguments = [*command, role, "--dir", str(folder / role), "--keys", str(keys), *options]
            started.append(subprocess.Popen(arguments, stdout=output, stderr=output, **own))  # type: ignore[call-overload]
        return _port(started[-1], log, "penstock remote ", " listens at ")

    try:
        manager = f"127.0.0.1:{start('manager')}"
        start("worker", "--manager", manager)
        yield {
            "spark.penstock.remote.manager": manager,
            "spark.penstock.access.keyFile": str(keys),
            "spark.penstock.access.user": _USER,
        }
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def service_outcomes(spark: Any, data: Dataset, repeat: int, say: Say) -> list[Outcome]:
    """The exchange by an integer through each service."""
    say(f"services, blocking: {data.rows:,} rows, {data.bytes / 1e6:,.0f} MB")
    seconds: dict[str, list[float]] = {service: [] for service in (*SERVICE_ROWS, _SPARK)}
    case = exchange_case(spark, BLOCKING, data, ExchangeForm("id"))
    for turn in range(_TURNS * repeat + 1):
        for service in SERVICE_ROWS:
            seconds[service].append(timed(_exchange(spark, data, service), lambda rows: _check(rows, data.rows)))
        theirs = timed(lambda: case.spark(False, CONSUMERS), lambda answer: case.check(answer, False))
        seconds[_SPARK].append(theirs)
        shown = ", ".join(f"{service} {found[-1]:.2f} s" for service, found in seconds.items())
        say(f"  {shown}" + ("" if turn else " (not counted)"))
    spark_seconds = tuple(seconds[_SPARK][1:])
    return [
        Outcome(row, data.rows, data.bytes, tuple(seconds[service][1:]), spark_seconds, CONSUMERS)
        for service, row in SERVICE_ROWS.items()
    ]


def _exchange(spark: Any, data: Dataset, service: str) -> Callable[[], int]:
    def run() -> int:
        rows = penstock.readParquet(spark, list(data.paths))
        keyed = rows.keyBy("id", numPartitions=CONSUMERS, mode="blocking", service=service)
        return sum(row.rows for row in keyed.mapInArrow(count_rows, COUNT_DDL).toDF().collect())

    return run


def _check(found: int, rows: int) -> None:
    if found != rows:
        raise WrongAnswerError(f"{found:,} rows arrived of {rows:,}")


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _port(process: subprocess.Popen[bytes], log: Path, first: str = "serving ", before: str = "://") -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        line = next((each for each in log.read_text().splitlines() if each.startswith(first)), "")
        if line:
            return line.partition(before)[2].split()[0].rpartition(":")[2]
        time.sleep(0.05)
    raise SettingError(f"no service has started: {log.read_text()[-2000:]}")
