# SPDX-License-Identifier: Apache-2.0
"""Spark's classes in one file that Java maps when a session starts, instead of reading and checking each out of jars.

Most of a session's start, and half of its first job, is Java loading classes. Java writes those that a short session
has used into an archive when it ends, and maps them in the next ones. An archive is for one Java and one class path.
Java compares both and does without where they differ; the file's name has them too, so that we can say so before.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from penstock.errors import PenstockError
from penstock.spark.java import cache_folder, find_java

_SECONDS = 600.0
_SHOWN = 2000
_SETTINGS = "non-empty directory"
_SETTINGS_HINT = (
    "Java keeps no classes of a class path with a folder that has files, such as Spark's conf folder: run without"
    " SPARK_CONF_DIR and give its settings to the session's builder; "
)
_PROGRAM = """
import tempfile
import penstock
from penstock.spark.session import open_session
from pyspark import SparkContext

def same(batches):
    yield from batches

with open_session("classes", 4) as spark:
    frame = spark.range(0, 100, 1, 2)
    with tempfile.TemporaryDirectory() as folder:
        frame.selectExpr("id % 3 AS k", "id AS v").groupBy("k").sum("v").orderBy("k").write.parquet(folder + "/p")
        spark.read.parquet(folder + "/p").mapInArrow(same, "k long, v long").collect()
    penstock.repartition(frame, 2, "id").toArrow()
    penstock.fromDataFrame(frame).keyBy("id").mapInArrow(same, "id long").toDF().collect()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def archive_path() -> Path:
    """The path at which the archive of this Python's Spark and this Java is, or would be.

    Raises SettingError without a Java.
    """
    from pyspark.find_spark_home import _find_spark_home  # here, because tests that need no Spark ask for the options

    java, version = Path(find_java()).resolve(), importlib.metadata.version("pyspark")
    parts = (str(java), java.stat().st_mtime_ns, _find_spark_home(), os.environ.get("SPARK_CONF_DIR", ""), version)
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return cache_folder() / f"spark-{version}-{name}.jsa"


def java_options(archive: Path) -> str:
    """The options by which a Java uses it, and says nothing if it can't."""
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off'


def preload() -> int:
    """`penstock preload`: write the archive, anew where there is one, and say what uses it; the exit code."""
    archive = archive_path()
    sys.stderr.write("penstock preload: a short Spark session runs, and its Java writes what it has loaded ...\n")
    write_archive(archive)
    megabytes = archive.stat().st_size // 1_000_000
    sys.stdout.write(
        f"{archive}: {megabytes} MB of Spark's classes. Sessions use it that are built so:\n"
        "  SparkSession.builder.config(map=penstock.preloading())\n"
        "or, in the pyspark shell and in Spark's own files, with these settings:\n"
        "  spark.python.daemon.module penstock.daemon\n"
        f"  spark.driver.extraJavaOptions {java_options(archive)}\n"
    )
    return 0


def write_archive(archive: Path) -> None:
    """Run a short session, whose Java writes the classes it has loaded when it ends: some 200 MB, half a minute.

    The file is replaced as a whole. Raises PenstockError with what Java said where there is none afterwards.
    """
    java = find_java()
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_suffix(f".{os.getpid()}.new")
    submit = f'--driver-java-options "-XX:ArchiveClassesAtExit={new}" pyspark-shell'
    environ = {**os.environ, "PYSPARK_SUBMIT_ARGS": submit, "PYSPARK_PYTHON": sys.executable}
    try:
        if subprocess.run([java, "-Xshare:on", "-version"], check=False, capture_output=True).returncode:
            _run([java, "-Xshare:dump"], environ, Path(java))  # its own classes first, which some come without
        _run([sys.executable, "-c", _PROGRAM], environ, new)
        _run([java, f"-XX:SharedArchiveFile={new}", "-version"], environ, new)  # a part of one ends a Java
        new.replace(archive)
    finally:
        new.unlink(missing_ok=True)


def _run(command: list[str], environ: dict[str, str], made: Path) -> None:
    try:
        ran = subprocess.run(command, env=environ, check=False, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise PenstockError(f"no archive of Spark's classes was written within {_SECONDS:.0f} s") from error
    if ran.returncode or not made.exists():
        lines = f"{ran.stdout}\n{ran.stderr}".splitlines()
        why = [line for line in lines if "rror" in line or "annot" in line] or lines
        hint = _SETTINGS_HINT if any(_SETTINGS in line for line in lines) else ""
        raise PenstockError(f"no archive of Spark's classes was written: {hint}{'; '.join(why)[:_SHOWN]}")
