# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m penstock_torture --seed 7 --duration 60`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from penstock.cli import run_command
from penstock_bench.numbers import natural, positive
from penstock_torture import TortureOptions, torture

_SESSION_MINUTES = 30

_NUMBERS = {
    "seed": "what chance depends on (0)",
    "tpch-runs": "TPC-H runs with a kill each (0)",
    "query": "instead, one streaming query left alone for so many minutes",
    "programs": "instead, so many random programs beside PySpark, from the seed on",
    "world": "instead, so many queries in a world that fails, from the seed on",
    "world-spark": "beside these, so many on Spark, with drivers that lose power",
    "world-connectors": "beside these, so many with tables, data sources and keyed results",
    "world-batches": "beside these, so many with tables by keys and functions for each batch",
    "stages": "instead, so many random stages with state beside plain Python, from the seed on",
    "stage-queries": "beside these, so many whole queries with state beside plain Python",
    "stage-streaming": "beside these, so many such queries beside Structured Streaming, run by run",
    "tables": "instead, so many random histories of tables beside the libraries of their owners",
    "starts": "beside these, so many queries that fail ahead of their first checkpoint, by source and start",
}
"""Options with a number, 0 where it is not given."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Torture; the exit code."""
    return run_command(parser(), arguments)


def parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    parser = argparse.ArgumentParser(prog="penstock_torture", description="Random jobs, kills and cancels.")
    parser.add_argument("--duration", type=positive, default=60, metavar="D", help="seconds (60)")
    parser.add_argument("--grid", action="store_true", help="the kill grid: every victim in every phase")
    session = "instead, one session that is held for so many minutes (30)"
    parser.add_argument(
        "--session", nargs="?", type=positive, const=_SESSION_MINUTES, default=0, metavar="M", help=session
    )
    browsers = "with --query: its web page is open in three browsers, not for three readers of what it tells"
    parser.add_argument("--browsers", action="store_true", help=browsers)
    for name, said in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=natural, default=0, metavar="N", help=said)
    results = "where programs and queries have a line each; those that are there are not run again"
    parser.add_argument("--results", default="", metavar="FILE", help=results)
    parser.add_argument(
        "--setting", default="", metavar="NAME", help="for all programs: cluster, threads, large, ..."
    )
    parser.set_defaults(run=_torture, parser=parser)
    return parser


def _torture(options: argparse.Namespace) -> int:
    given = (options.seed, options.duration, options.tpch_runs, options.grid)
    compared = (options.programs, options.results, options.setting)
    worlds = (options.world, options.world_spark, options.world_connectors, options.world_batches)
    stages = (options.stages, options.stage_queries, options.stage_streaming, options.starts)
    held = (options.session, options.query, options.browsers)
    return torture(TortureOptions(*given, *held, *compared, *stages, *worlds, options.tables))


if __name__ == "__main__":
    sys.exit(main())
