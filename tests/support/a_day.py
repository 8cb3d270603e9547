# SPDX-License-Identifier: Apache-2.0
"""The steps of a person in a session: run by `test_any_session` as a script, in shells and in a notebook.

Tests import nothing of it. `folder` is in the environment; each step prints one line.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import penstock

folder = os.environ["PENSTOCK_A_DAY"]
ROWS = 1000
Path(folder, "pid").write_text(str(os.getpid()))
stacks = os.open(Path(folder, "stacks.txt"), os.O_CREAT | os.O_WRONLY)
faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)  # for a test that waits in vain


def session() -> Any:
    """The session there is, or one as a user builds it."""
    builder = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
    return builder.config("spark.log.level", "ERROR").getOrCreate()


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes ten minutes, and says when it begins and ends."""
    try:
        for batch in batches:
            Path(folder, f"begun-{os.getpid()}").touch()
            for _ in range(30_000):
                time.sleep(0.02)
                yield batch
    finally:
        written = Path(folder, f"writes-{os.getpid()}")
        written.write_text(str(time.time()))
        written.rename(Path(folder, f"ended-{os.getpid()}"))  # whole from the first look on


def wrong(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fails."""
    for _ in batches:
        raise ValueError("a user's error")
    yield from ()


def count(spark: Any) -> int:
    """A pipeline's rows."""
    return int(penstock.repartition(spark.range(ROWS), 2, "id").count())


def sessions(spark: Any) -> None:
    """Two sessions, and an error in one of them."""
    other = spark.newSession()
    print("SESSIONS", count(spark), count(other), count(spark), flush=True)
    try:
        penstock.fromDataFrame(other.range(ROWS)).mapInArrow(wrong, "id long").toDF().count()
    except PythonException as error:
        print("ERROR", str(error).splitlines()[-2], flush=True)


def interrupted(spark: Any) -> None:
    """A job that somebody interrupts, and the next action."""
    stream = penstock.fromDataFrame(spark.range(0, ROWS, 1, 2)).keyBy("id", numPartitions=2)
    try:
        stream.mapInArrow(slow, "id long").toDF().count()
    except KeyboardInterrupt:
        began = time.time()
        print("INTERRUPTED", flush=True)
        while time.time() - began < 240 and len(list(Path(folder).glob("ended-*"))) < 2:
            time.sleep(0.02)
        ends = [float(path.read_text()) for path in Path(folder).glob("ended-*")]
        print("STOPPED", len(ends), f"{max(ends, default=began + 99) - began:.2f}", flush=True)
        print("NEXT", count(spark), f"{time.time() - began:.2f}", flush=True)


def again(spark: Any) -> Any:
    """A stop, and another session."""
    spark.stop()
    spark = session()
    print("AGAIN", count(spark), flush=True)
    return spark


if __name__ == "__main__" and "PENSTOCK_A_DAY_PARTS" not in os.environ:
    spark = session()
    sessions(spark)
    if "PENSTOCK_A_DAY_UNINTERRUPTED" not in os.environ:  # Spark's own JVM ends at a Ctrl-C there
        interrupted(spark)
    again(spark).stop()
    print("END", flush=True)
