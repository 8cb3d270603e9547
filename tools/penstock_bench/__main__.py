# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m penstock_bench all`, or one of its parts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from penstock.cli import run_command
from penstock_bench.numbers import positive


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a bench; the exit code."""
    return run_command(parser(), arguments)


def parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    parser = argparse.ArgumentParser(
        prog="penstock_bench", description="Measure Penstock beside Spark's own shuffle."
    )
    kinds = parser.add_subparsers(title="benches", required=True, metavar="BENCH")
    exchange = kinds.add_parser("exchange", help="exchanges by key between Python stages")
    exchange.add_argument("--rows", type=positive, default=20_000_000, metavar="N", help="rows (20 million)")
    exchange.add_argument("--partitions", type=positive, default=4, metavar="P", help="consumers (4)")
    exchange.add_argument("--keys", choices=("int", "string", "both"), default="both", help="which keys (both)")
    everything = kinds.add_parser("all", help="everything, and write the figures into the pages")
    everything.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual rows (1)")
    blocking = kinds.add_parser("blocking", help="blocking exchanges to many subpartitions")
    blocking.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual rows (1)")
    hybrid = kinds.add_parser("hybrid", help="hybrid exchanges beside blocking ones, and what overlap gives")
    hybrid.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual rows (1)")
    services = kinds.add_parser("services", help="blocking exchanges through the services, in turns")
    services.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual rows (1)")
    latency = kinds.add_parser("latency", help="one row at a time through one and two exchanges")
    latency.set_defaults(scale=1.0)
    copies = kinds.add_parser("copies", help="what it costs that rows which are held are copied behind a function")
    copies.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual rows (1)")
    metrics = kinds.add_parser("metrics", help="what it costs that all metrics are on")
    metrics.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual rows (1)")
    tls = kinds.add_parser("tls", help="what it costs that rows between executors are encrypted")
    tls.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual rows (1)")
    page = kinds.add_parser("page", help="what it costs that three people have the web page open")
    page.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual turns (1)")
    streaming = kinds.add_parser("streaming", help="streaming queries: rates, checkpoints, latency, recovery")
    streaming.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual seconds (1)")
    alone = kinds.add_parser("alone", help="gaps between rows while one task of a query restarts alone")
    alone.set_defaults(scale=1.0)
    checkpoints = kinds.add_parser("checkpoints", help="checkpoints while a slow operator holds everything back")
    checkpoints.set_defaults(scale=1.0)
    written = (blocking, hybrid, services, latency, copies, metrics, tls, page, streaming, alone, checkpoints)
    for kind in written:
        kind.add_argument("--write", action="store_true", help="put the figures into the pages, beside the others")
    for kind in (everything, *written):
        kind.add_argument("--readme", default="README.md", metavar="FILE", help="where five rows go (README.md)")
        kind.add_argument("--page", default="docs/benchmarks.md", metavar="FILE", help="where all figures go")
    for kind in (exchange, everything, *written):
        kind.add_argument("--repeat", type=positive, default=3, metavar="R", help="measured runs of each side (3)")
        kind.add_argument("--json", action="store_true", help="one JSON object")
        kind.set_defaults(run=_bench, parser=kind)
    start = kinds.add_parser("start", help="the first job of a session, cold, beside plain PySpark's")
    start.add_argument("--repeat", type=positive, default=3, metavar="R", help="measured sessions of each way (3)")
    start.add_argument("--slots", type=positive, default=4, metavar="N", help="task slots of the session (4)")
    start.add_argument("--json", action="store_true", help="one JSON object")
    start.set_defaults(run=_bench_start, parser=start)
    programs = kinds.add_parser("programs", help="small real programs in PySpark alone and with Penstock")
    programs.add_argument("only", nargs="*", metavar="NAME", help="programs, or parts of their names (all)")
    programs.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual rows (1)")
    programs.add_argument("--repeat", type=positive, default=3, metavar="R", help="measured runs of each form (3)")
    programs.add_argument("--json", action="store_true", help="one JSON object")
    programs.set_defaults(run=_bench_programs, parser=programs)
    exchange.set_defaults(bench="exchange")
    everything.set_defaults(bench="all", write=True)
    blocking.set_defaults(bench="blocking")
    hybrid.set_defaults(bench="hybrid")
    services.set_defaults(bench="services")
    latency.set_defaults(bench="latency")
    copies.set_defaults(bench="copies")
    metrics.set_defaults(bench="metrics")
    tls.set_defaults(bench="tls")
    page.set_defaults(bench="page")
    streaming.set_defaults(bench="streaming")
    alone.set_defaults(bench="alone")
    checkpoints.set_defaults(bench="checkpoints")
    return parser


def _bench(options: argparse.Namespace) -> int:
    from penstock_bench import command

    if options.bench in command.KINDS:
        told = command.AllOptions(
            options.scale, options.repeat, options.write, options.readme, options.page, options.json
        )
        return command.bench_sections(options.bench, told)
    chosen = command.BenchOptions(options.rows, options.keys, options.repeat, options.partitions, options.json)
    return command.bench_exchange(chosen)


def _bench_start(options: argparse.Namespace) -> int:
    from penstock_bench.start import StartOptions, bench_start

    return bench_start(StartOptions(options.repeat, options.slots, options.json))


def _bench_programs(options: argparse.Namespace) -> int:
    from penstock_bench.program_runs import ProgramOptions, bench_programs

    return bench_programs(ProgramOptions(options.scale, options.repeat, tuple(options.only), options.json))


if __name__ == "__main__":
    sys.exit(main())
