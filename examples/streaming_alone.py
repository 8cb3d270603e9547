# SPDX-License-Identifier: Apache-2.0
"""A query of which one task dies and restarts alone, while all others go on: approximate recovery.

    python examples/streaming_alone.py
    python examples/streaming_alone.py --log --rate 20000

Readings go to two tasks, which scale them, and from there into Parquet files. One of the two kills its own process.
Nobody waits for its successor: readings that are sent to it meanwhile are lost, and the query says how many. With
`--log` all tasks log what they send, and the successor reads its input again out of the logs: nothing is lost, and a
few rows come twice. The program compares what the query says with what is in the files.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import sys
import tempfile
import time

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import penstock
from penstock.spark.session import open_session


def main(arguments=None):
    """Run it; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=int, default=6_000, help="how many readings in a second (6,000)")
    parser.add_argument("--log", action="store_true", help="log rows, so that a task reads its input again")
    options = parser.parse_args(arguments)
    with open_session("streaming alone", 6) as spark, tempfile.TemporaryDirectory() as folder:
        query = start(spark, folder, options)
        wait_until(lambda: completed(query) > 0)
        pathlib.Path(folder, "die").touch()
        wait_until(lambda: is_counted(query))
        before = completed(query)
        wait_until(lambda: completed(query) > before + 1)
        report = query.lastProgress["recovery"]
        query.stop()
        return compare(report, pq.read_table(f"{folder}/readings")["number"], log=options.log)


def start(spark, folder, options):
    """The query: its tasks take a checkpoint five times a second, and restart one by one."""
    rate = penstock.readStream(spark).format("rate").options(rowsPerSecond=options.rate, numPartitions=1)
    scaled = rate.load().rebalance(2).mapInArrow(scaling(f"{folder}/die"), "number long, volts double")
    writer = scaled.rebalance(1).writeStream.format("parquet").option("checkpointInterval", "200ms")
    writer = writer.option("recovery", "approximate").option("consistency", "at_least_once")
    if options.log:
        writer = writer.option("persistInFlight", "continuous")
    return writer.option("checkpointLocation", f"{folder}/checkpoints").start(f"{folder}/readings")


def scaling(wish):
    """A function that scales readings; the first task that finds the file `wish` dies of it."""

    def scale(batches):
        for batch in batches:
            with contextlib.suppress(FileNotFoundError):
                pathlib.Path(wish).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            volts = pc.multiply(pc.cast(batch["value"], pa.float64()), 0.001)
            yield pa.record_batch([batch["value"], volts], names=["number", "volts"])

    return scale


def completed(query):
    """The number of complete checkpoints."""
    return (query.lastProgress or {"checkpoints": {"completed": 0}})["checkpoints"]["completed"]


def is_counted(query):
    """Tell whether a task has restarted, and it is known of all channels what that has cost."""
    found = (query.lastProgress or {}).get("recovery")
    return found is not None and found["restartsAlone"] > 0 and not found["channelsNotCounted"]


def wait_until(holds, seconds=120):
    """Until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.05)


def compare(report, numbers, *, log):
    """Print what was lost and doubled, by the report and by the files; gives the exit code."""
    distinct = len(pc.unique(numbers))
    missing, doubled = pc.max(numbers).as_py() + 1 - distinct, len(numbers) - distinct
    says = (0, report["rowsReadAgain"] - report["rowsLost"]) if log else (report["rowsLost"], 0)
    print(f"{report['restartsAlone']} task restarted alone; {len(numbers):,} rows are in the files")
    print(f"the report says: {says[0]:,} missing, {says[1]:,} doubled")
    print(f"the files have:  {missing:,} missing, {doubled:,} doubled")
    return 0 if (missing, doubled) == says else 1


if __name__ == "__main__":
    sys.exit(main())
