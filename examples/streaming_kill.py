# SPDX-License-Identifier: Apache-2.0
"""A query whose worker is killed in the middle, which changes nothing: every number is there once.

    python examples/streaming_kill.py
    python examples/streaming_kill.py --rows 200000 --rate 20000

Numbers go from a source through an exchange by key, where each is counted, and through another exchange into Parquet
files. While rows flow, one Python process that runs a task is killed with SIGKILL. The query goes on from its last
checkpoint; at the end the files must hold each number once, with the count 1.
"""

import argparse
import os
import pathlib
import signal
import sys
import tempfile
import time

import pyarrow.parquet as pq

import penstock
from penstock.spark.session import open_session


def main(arguments=None):
    """Run it; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000, help="how many numbers (20,000)")
    parser.add_argument("--rate", type=int, default=4_000, help="how many in a second (4,000)")
    options = parser.parse_args(arguments)
    with open_session("streaming kill", 6) as spark, tempfile.TemporaryDirectory() as folder:
        query = start(spark, folder, options)
        wait_for_rows(folder)
        victim = a_worker()
        os.kill(victim, signal.SIGKILL)
        print(f"process {victim} is killed after {len(pq.read_table(f'{folder}/numbers')):,} rows were committed")
        query.awaitTermination()
        table = pq.read_table(f"{folder}/numbers")
        values = table["value"].to_pylist()
        lost, doubled = options.rows - len(set(values)), len(values) - len(set(values))
        last = query.lastProgress
        print(f"{len(values):,} rows, {lost} lost, {doubled} doubled, {last['restarts']} restarts")
        return 0 if (lost, doubled, set(table["n"].to_pylist())) == (0, 0, {1}) else 1


def start(spark, folder, options):
    """The query, with a checkpoint each fifth of a second."""
    rate = penstock.readStream(spark).format("rate").option("numPartitions", 2)
    numbers = rate.options(rowsPerSecond=options.rate, numRows=options.rows).load()
    counted = numbers.keyBy("value", numPartitions=2).agg(n=("value", "count")).rebalance(1)
    writer = counted.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoints")
    return writer.option("checkpointInterval", "200ms").start(f"{folder}/numbers")


def wait_for_rows(folder):
    """Until a checkpoint has published the first file."""
    while not list(pathlib.Path(folder).glob("numbers/part-*")):
        time.sleep(0.05)


def a_worker():
    """One of the processes that Spark's Python daemon has forked for tasks."""
    parents, commands = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_text()
            except OSError:
                continue  # it has just ended

    def is_mine(pid):
        while pid in parents:
            if pid == os.getpid():
                return True
            pid = parents[pid]
        return False

    daemons = {pid for pid, command in commands.items() if "daemon" in command and is_mine(pid)}
    return min(pid for pid in daemons if parents[pid] in daemons)


if __name__ == "__main__":
    sys.exit(main())
