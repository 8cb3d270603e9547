# SPDX-License-Identifier: Apache-2.0
"""How a run's Java starts: soon, and with Spark defaults that suit many small queries.

Each Java of a run, executors included, lives for short. The optimizing compiler costs half of its processor time
there and never earns it back. Of the rest, half goes into reading and checking Spark's classes: the first `make test`
writes them to an archive in the virtualenv (`python tests/java_starts.py`), which Java maps at its start. Java itself
sees whether the archive is of this Java and these jars, and does without it where it is not.

All of it is in `JDK_JAVA_OPTIONS`, Spark's defaults too: a folder of Spark settings would stand on the class path,
and an archive is for one class path. What that variable has from outside comes last, so it wins.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "JDK_JAVA_OPTIONS"

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_DEFAULTS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "4",
    "spark.python.daemon.module": "penstock.daemon",
}
"""A run sees many small queries: it writes and compiles no Java for each, shuffles into no 200 partitions, and its
workers begin with everything imported."""

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"

_PROGRAM = """
import tempfile
import penstock
from penstock.spark.session import open_session
from pyspark import SparkContext

with open_session("classes", 4) as spark:
    frame = spark.range(0, 100, 1, 2)
    with tempfile.TemporaryDirectory() as folder:
        frame.selectExpr("id % 3 AS k", "id AS v").groupBy("k").sum("v").orderBy("k").write.parquet(folder + "/p")
        spark.read.parquet(folder + "/p").mapInArrow(lambda batches: batches, "k long, v long").collect()
    penstock.repartition(frame, 2, "id").toArrow()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def options(*, defaults: bool = True) -> str:
    """Of every Java of a run; without Spark defaults where a test wants those that Spark itself has."""
    found = [_QUICK]
    if ARCHIVE.exists() and ARCHIVE.stat().st_size:
        found += [f'"-XX:SharedArchiveFile={ARCHIVE}"', "-Xlog:disable -Xlog:all=error:stderr"]
    if defaults:
        found += [f"-D{name}={value}" for name, value in _DEFAULTS.items()]
    return " ".join(found)


def start_soon() -> None:
    """Let every Java that this process and its descendants start have the options."""
    if _QUICK not in os.environ.get(VARIABLE, ""):
        os.environ[VARIABLE] = f"{options()} {os.environ.get(VARIABLE, '')}".strip()


def write_archive() -> None:
    """Of what a short session loads; an empty file where that fails, for tests pass without."""
    new = ARCHIVE.with_suffix(".new")
    submit = f"--driver-java-options -XX:ArchiveClassesAtExit={new} pyspark-shell"
    environ = {**os.environ, VARIABLE: _QUICK, "PYSPARK_SUBMIT_ARGS": submit, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", _PROGRAM]
    ran = subprocess.run(command, env=environ, check=False, capture_output=True, text=True, timeout=1200)
    if ran.returncode or not new.exists():
        print(f"Spark's classes are in no archive, so sessions start slowly: {ran.stderr[-2000:]}", file=sys.stderr)
        new.touch()
    new.replace(ARCHIVE)


if __name__ == "__main__":
    write_archive()
