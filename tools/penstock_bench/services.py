# SPDX-License-Identifier: Apache-2.0
"""Blocking exchanges through the services, in turns in one session: `local`, whose readers map files, and others.

The host service, Spark's own and a remote one run beside the session, as an operator starts them; readers fetch all
rows from their ports, but for one way on which the host service lends them its files. Spark's exchange of the same
rows runs in the same turns.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import secrets
import socket
import statistics
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
from penstock_bench.catalogue import BLOCKING
from penstock_bench.functions import COUNT_DDL, count_rows
from penstock_bench.measure import Outcome, Say, WrongAnswerError, timed
from penstock_bench.page_rows import Row
from penstock_bench.processor import processor_seconds
from penstock_bench.rows import Dataset
from penstock_bench.service_rows import SERVICE_ROWS

_TURNS = 3
"""Turns for each repetition: they are short, and what is asked is a small difference."""
_START_SECONDS = 30.0
_SPARK = "Spark"
_USER = "bench"
_LENDING = "spark.penstock.external.lending"
_LENT = ", lent"


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
    """The exchange by an integer through each service, and Spark's own."""
    say(f"services, blocking: {data.rows:,} rows, {data.bytes / 1e6:,.0f} MB")
    case = exchange_case(spark, BLOCKING, data, ExchangeForm("id"))
    ways = _ways(spark, data, SERVICE_ROWS)
    ways[_SPARK] = lambda: timed(lambda: case.spark(False, CONSUMERS), lambda answer: case.check(answer, False))
    seconds = _in_turns(spark, ways, repeat, say)
    return [
        Outcome(row, data.rows, data.bytes, seconds[way], seconds[_SPARK], CONSUMERS)
        for way, row in SERVICE_ROWS.items()
    ]


def _ways(spark: Any, data: Dataset, rows: dict[str, Row]) -> dict[str, Callable[[], float]]:
    """By way: an exchange that goes it, whose answer is checked; its seconds."""
    check = functools.partial(_check, rows=data.rows)
    return {way: functools.partial(timed, _exchange(spark, data, way), check) for way in rows}


def _in_turns(
    spark: Any, ways: dict[str, Callable[[], float]], repeat: int, say: Say
) -> dict[str, tuple[float, ...]]:
    """The seconds of each way, and a line with those of all processes' processors; the first turn is not counted.

    Each turn has another order: on a virtual machine the exchange that follows Spark's pays for the memory that the
    host has taken back meanwhile, and that would always be the same one.
    """
    found: dict[str, list[float]] = {way: [] for way in ways}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(_TURNS * repeat + 1):
        for way in random.Random(turn).sample(list(ways), len(ways)):  # noqa: S311 - an order, no secret
            before = processor_seconds(spark.sparkContext.applicationId)
            seconds = ways[way]()
            found[way] += [seconds] if turn else []
            taken[way] += [processor_seconds(spark.sparkContext.applicationId) - before] if turn else []
            say(f"  {way} {seconds:.2f} s" + ("" if turn else " (not counted)"))
    for way, values in taken.items():
        say(f"  {way}: {statistics.median(values):.2f} CPU s, {statistics.median(found[way]):.2f} s")
    return {way: tuple(values) for way, values in found.items()}


def _exchange(spark: Any, data: Dataset, way: str) -> Callable[[], int]:
    service = way.removesuffix(_LENT)

    def run() -> int:
        spark.conf.set(_LENDING, str(way != service).lower())
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
