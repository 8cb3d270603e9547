# SPDX-License-Identifier: Apache-2.0
"""Blocking exchanges through the services, in turns in one session: `local`, whose readers map files, and others.

The host service runs beside the session, as an operator starts it, and its readers fetch all rows from its port.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock.errors import SettingError
from penstock_bench.cases import CONSUMERS
from penstock_bench.catalogue import SERVICE_ROWS
from penstock_bench.functions import COUNT_DDL, count_rows
from penstock_bench.measure import Outcome, Say, WrongAnswerError, timed
from penstock_bench.rows import Dataset

_TURNS = 3
"""Turns for each repetition: they are short, and what is asked is a small difference."""
_START_SECONDS = 30.0


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


def service_outcomes(spark: Any, data: Dataset, repeat: int, say: Say) -> list[Outcome]:
    """The exchange by an integer through each service."""
    say(f"services, blocking: {data.rows:,} rows, {data.bytes / 1e6:,.0f} MB")
    seconds: dict[str, list[float]] = {service: [] for service in SERVICE_ROWS}
    for turn in range(_TURNS * repeat + 1):
        for service, found in seconds.items():
            found.append(timed(_exchange(spark, data, service), lambda rows: _check(rows, data.rows)))
        shown = ", ".join(f"{service} {found[-1]:.2f} s" for service, found in seconds.items())
        say(f"  {shown}" + ("" if turn else " (not counted)"))
    return [
        Outcome(SERVICE_ROWS[service], data.rows, data.bytes, tuple(found[1:])) for service, found in seconds.items()
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


def _port(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        line = next((each for each in log.read_text().splitlines() if each.startswith("serving ")), "")
        if line:
            return line.partition("://")[2].split()[0].rpartition(":")[2]
        time.sleep(0.05)
    raise SettingError(f"no host service has started: {log.read_text()[-2000:]}")
