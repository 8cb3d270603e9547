# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock_bench start`: the first job of a session, cold, beside plain PySpark's first `mapInArrow` job.

Each run is a process of its own with a session of its own, and the ways take turns. The first job's clock starts when
the session is there: ours pays for the import of the library, an exchange and the environment process, PySpark's for
nothing but its workers. The session's own start is told, too: preloading makes that shorter. Limit: the files of the
libraries are in the machine's cache from the second round on.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.spark.class_archive import java_options, write_archive
from penstock_bench.session import machine

_SECONDS = 300.0
PROGRAM = """
import json, sys, time
from pyspark.sql import SparkSession
way, slots, conf = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
began = time.perf_counter()
builder = SparkSession.builder.master(f"local[{slots}]").config("spark.ui.enabled", "false")
builder = builder.config("spark.log.level", "ERROR").config("spark.ui.showConsoleProgress", "false")
spark = builder.config(map=conf).getOrCreate()

def same(batches):
    yield from batches

seconds = {"session": time.perf_counter() - began}
for job in ("first", "second"):
    began = time.perf_counter()
    rows = spark.range(0, 1000, 1, 2)
    if way == "penstock":
        import penstock
        frame = penstock.fromDataFrame(rows).keyBy("id", numPartitions=2).mapInArrow(same, "id long").toDF()
        seconds.setdefault("toDF", time.perf_counter() - began)
    else:
        frame = rows.mapInArrow(same, "id long")
    assert len(frame.collect()) == 1000
    seconds[job] = time.perf_counter() - began
print(json.dumps(seconds))
spark.stop()
"""

DAEMON = {"spark.python.daemon.module": "pyspark.daemon"}
"""Its workers import for themselves; ours, which local sessions take, has imported before it forks."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of the command line of `bench start`."""

    repeat: int = 3
    slots: int = 4
    json: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a first job: by Penstock or by PySpark alone, in a session with these settings."""

    name: str
    library: str
    conf: Mapping[str, str] = field(default_factory=dict)


def ways(archive: Path) -> tuple[Way, ...]:
    """All that are compared; Java's classes are in the archive."""
    preloaded = {"spark.driver.extraJavaOptions": java_options(archive)}
    return (
        Way("PySpark", "pyspark"),
        Way("Penstock", "penstock"),
        Way("Penstock, preloaded", "penstock", preloaded),
        Way("Penstock, PySpark's daemon", "penstock", DAEMON),
    )


Run = Callable[[Way, int], Mapping[str, float]]


def bench_start(options: StartOptions) -> int:
    """Run all ways in turns, and print the medians and what they are of PySpark's."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        archive = Path(folder) / "classes.jsa"
        write_archive(archive)
        report = medians(measured(run_cold, ways(archive), options.repeat, options.slots))
    if options.json:
        sys.stdout.write(json.dumps({"machine": machine(), "ways": report}) + "\n")
        return 0
    base = next(iter(report.values()))["first"]
    for name, seconds in report.items():
        parts = ", ".join(f"{key} {value:.2f} s" for key, value in seconds.items())
        sys.stdout.write(f"{name}: {parts} ({seconds['first'] / base:.2f} x)\n")
    return 0


def measured(run: Run, all_ways: Sequence[Way], repeat: int, slots: int) -> dict[str, list[Mapping[str, float]]]:
    """The seconds of each run, by way; one run of each, again and again."""
    found: dict[str, list[Mapping[str, float]]] = {way.name: [] for way in all_ways}
    for turn in range(repeat):
        for way in all_ways:
            found[way.name].append(run(way, slots))
            sys.stderr.write(f"  {turn + 1}/{repeat} {way.name}: {found[way.name][-1]['first']:.2f} s\n")
    return found


def medians(found: Mapping[str, list[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The middle run of each figure."""
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()
    }


def run_cold(way: Way, slots: int, program: str = PROGRAM) -> Mapping[str, float]:
    """One run in a process of its own; raises PenstockError with what it printed where it fails."""
    command = [sys.executable, "-c", program, way.library, str(slots), json.dumps(way.conf)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_SECONDS, check=False)
    if ran.returncode != 0:
        raise PenstockError(f"bench start: {way.name} failed: {ran.stderr.strip()[-2000:]}")
    return {str(key): float(value) for key, value in json.loads(ran.stdout.splitlines()[-1]).items()}
