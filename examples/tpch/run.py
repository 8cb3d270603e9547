# SPDX-License-Identifier: Apache-2.0
"""Five queries of TPC-H as Penstock pipelines over Parquet, each compared row for row with DuckDB's answer.

    python examples/tpch/run.py --scale 1 --mode blocking

Needs `pip install -e '.[tpch]'`. The tables go into a folder that is removed at the end, or with `--data` into one
that is kept and used again. Exit code 1 means that an answer differs or a query failed. The seconds are those of one
run each in a session whose workers are up; the first has the imports of all workers in it.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import q03
import q05
import q10
import q12
import q18
from data import generate
from pyspark.errors import PySparkException

import penstock
from penstock.errors import PenstockError
from penstock.spark.session import open_session
from reference import difference, duckdb_answer, penstock_answer

QUERIES = {3: q03, 5: q05, 10: q10, 12: q12, 18: q18}
COLUMNS = "{:>5}  {:>5}  {:>8}  {:>14}  {}"


def main(arguments=None):
    """Run what the command line asks for; gives the exit code."""
    options = parse(arguments)
    with contextlib.ExitStack() as stack:
        folder = options.data or stack.enter_context(tempfile.TemporaryDirectory(prefix="tpch-"))
        try:
            generate(folder, options.scale)
        except (ValueError, subprocess.CalledProcessError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        conf = {"spark.master": options.master, "spark.penstock.shuffle.mode": options.mode}
        spark = stack.enter_context(open_session("penstock-tpch", conf=conf))
        penstock.fromDataFrame(spark.range(1000)).rebalance(mode="blocking").run()  # starts Spark's workers
        print(COLUMNS.format("query", "rows", "seconds", "DuckDB seconds", ""))
        return max([compare(spark, folder, number) for number in options.queries])


def parse(arguments):
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="the scale factor: 1 is a gigabyte of text")
    parser.add_argument("--queries", type=numbers, default=list(QUERIES), help="such as 3,18; all five if not given")
    parser.add_argument("--mode", default="blocking", choices=["blocking", "blocking_hash", "pipelined"])
    parser.add_argument(
        "--data", type=lambda path: str(Path(path).absolute()), help="a folder for the tables to keep"
    )
    parser.add_argument("--master", default="local[8]", help="Spark's master; pipelined queries need up to 8 slots")
    return parser.parse_args(arguments)


def numbers(text):
    """Query numbers from a text such as 3,18."""
    found = [int(part) for part in text.split(",")]
    unknown = [number for number in found if number not in QUERIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no query {unknown[0]} here, only {', '.join(map(str, QUERIES))}")
    return found


def compare(spark, folder, number):
    """Answer one query both ways and print a line about it; gives 0 where the answers are equal."""
    query = QUERIES[number]
    try:
        ours, seconds = timed(lambda: penstock_answer(query.pipeline(spark, folder)))
    except (PenstockError, PySparkException) as error:
        print(COLUMNS.format(number, "", "", "", f"failed: {error}"))
        return 1
    theirs, reference_seconds = timed(lambda: duckdb_answer(folder, query.SQL))
    found = difference(ours, theirs)
    print(
        COLUMNS.format(number, len(ours), f"{seconds:.2f}", f"{reference_seconds:.2f}", found or "equal"), flush=True
    )
    return 0 if found is None else 1


def timed(action):
    """Return the result of an action, and the seconds it took."""
    start = time.perf_counter()
    result = action()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
