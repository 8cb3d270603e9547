# SPDX-License-Identifier: Apache-2.0
"""The command line: `penstock doctor`, `preload`, `wordcount`, `checkpoints inspect`, `bench`, `torture`.

Exit codes: 0 well, 1 an answer was wrong or a job failed, 2 the arguments or the input are wrong (one line on
standard error), 130 interrupted. Figures and results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import signal
import sys
from collections.abc import Callable, Sequence

from penstock.shuffle.errors import PenstockError, SettingError

WRONG, USAGE, INTERRUPTED = 1, 2, 130
_SESSION_MINUTES = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    options = parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being told to end also cleans up
    try:
        return run(options)
    except KeyboardInterrupt:
        print("penstock: interrupted", file=sys.stderr)
        return INTERRUPTED
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return USAGE if isinstance(error, SettingError) else WRONG


def parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    top = argparse.ArgumentParser(prog="penstock", description="A data-exchange service for PySpark pipelines.")
    top.add_argument("--version", action="version", version=f"penstock {importlib.metadata.version('penstock')}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_doctor(commands.add_parser("doctor", help="whether Penstock can run here, and what to do where it cannot"))
    _add_preload(commands.add_parser("preload", help="once: let sessions of penstock.preloading() start sooner"))
    _add_wordcount(commands.add_parser("wordcount", help="count words of text files through an exchange on Spark"))
    _add_checkpoints(commands.add_parser("checkpoints", help="look at the checkpoints of a streaming query"))
    _add_bench(commands.add_parser("bench", help="measure Penstock beside Spark's own shuffle"))
    _add_torture(commands.add_parser("torture", help="random jobs, kills and cancels"))
    return top


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", default="local[2]", metavar="URL", help="the cluster to look at (local[2])")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of the session")
    parser.add_argument("--json", action="store_true", help="one JSON list")
    parser.set_defaults(run=_doctor, parser=parser)


def _add_preload(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_preload, parser=parser)


def _add_wordcount(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH", help="text files, and folders of them")
    parser.add_argument("--demo", action="store_true", help="the text and source files of this Python")
    parser.add_argument("--partitions", type=positive, metavar="N", help="consumers of the exchange")
    parser.add_argument("--top", type=natural, default=20, metavar="K", help="how many words to show (20)")
    parser.add_argument("--verify", action="store_true", help="count again in plain Python, and compare")
    parser.add_argument("--compare", action="store_true", help="also time Spark's JVM on the same text")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_wordcount, parser=parser)


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(title="words", required=True, metavar="WORD")
    inspect = words.add_parser("inspect", help="what lies at a checkpointLocation, and what each task did for it")
    inspect.add_argument("location", metavar="LOCATION", help="a checkpointLocation: a folder, or a URI")
    inspect.add_argument("--verify", action="store_true", help="also compare all bytes with their checksums")
    inspect.add_argument("--json", action="store_true", help="one JSON list")
    inspect.set_defaults(run=_inspect, parser=inspect)


def _add_bench(parser: argparse.ArgumentParser) -> None:
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
    latency = kinds.add_parser("latency", help="one row at a time through one and two exchanges")
    latency.set_defaults(scale=1.0)
    copies = kinds.add_parser("copies", help="what it costs that rows which are held are copied behind a function")
    copies.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual rows (1)")
    streaming = kinds.add_parser("streaming", help="streaming queries: rates, checkpoints, latency, recovery")
    streaming.add_argument("--scale", type=float, default=1.0, metavar="F", help="times the usual seconds (1)")
    checkpoints = kinds.add_parser("checkpoints", help="checkpoints while a slow operator holds everything back")
    checkpoints.set_defaults(scale=1.0)
    for kind in (blocking, hybrid, latency, copies, streaming, checkpoints):
        kind.add_argument("--write", action="store_true", help="put the figures into the pages, beside the others")
    for kind in (everything, blocking, hybrid, latency, copies, streaming, checkpoints):
        kind.add_argument("--readme", default="README.md", metavar="FILE", help="where five rows go (README.md)")
        kind.add_argument("--page", default="docs/benchmarks.md", metavar="FILE", help="where all figures go")
    for kind in (exchange, everything, blocking, hybrid, latency, copies, streaming, checkpoints):
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
    latency.set_defaults(bench="latency")
    copies.set_defaults(bench="copies")
    streaming.set_defaults(bench="streaming")
    checkpoints.set_defaults(bench="checkpoints")


def _add_torture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=natural, default=0, metavar="S", help="what chance depends on (0)")
    parser.add_argument("--duration", type=positive, default=60, metavar="D", help="seconds (60)")
    parser.add_argument("--tpch-runs", type=natural, default=0, metavar="N", help="TPC-H runs with a kill each (0)")
    parser.add_argument("--grid", action="store_true", help="the kill grid: every victim in every phase")
    session = "instead, one session that is held for so many minutes (30)"
    parser.add_argument(
        "--session", nargs="?", type=positive, const=_SESSION_MINUTES, default=0, metavar="M", help=session
    )
    parser.add_argument(
        "--query", type=natural, default=0, metavar="M", help="instead, one streaming query left alone for M minutes"
    )
    programs = "instead, so many random programs beside PySpark, from seed S on"
    parser.add_argument("--programs", type=natural, default=0, metavar="N", help=programs)
    world = "instead, so many queries in a world that fails, from seed S on"
    parser.add_argument("--world", type=natural, default=0, metavar="N", help=world)
    world_spark = "beside these, so many on Spark, with drivers that lose power"
    parser.add_argument("--world-spark", type=natural, default=0, metavar="N", help=world_spark)
    results = "where programs and queries have a line each; those that are there are not run again"
    parser.add_argument("--results", default="", metavar="FILE", help=results)
    parser.add_argument(
        "--setting", default="", metavar="NAME", help="for all programs: cluster, threads, large, ..."
    )
    parser.set_defaults(run=_torture, parser=parser)


def positive(text: str) -> int:
    """A whole number from one on."""
    value = natural(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return value


def natural(text: str) -> int:
    """A whole number from zero on; underscores are fine."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return value


def _doctor(options: argparse.Namespace) -> int:
    pairs = [text.partition("=") for text in options.conf]
    if not all(key and sign for key, sign, _ in pairs):
        options.parser.error("--conf takes KEY=VALUE")
    from penstock.doctor.command import DoctorOptions, run_doctor

    return run_doctor(DoctorOptions(options.master, {key: value for key, _, value in pairs}, options.json))


def _preload(_: argparse.Namespace) -> int:
    from penstock.spark.class_archive import preload

    return preload()


def _wordcount(options: argparse.Namespace) -> int:
    if options.demo == bool(options.paths):
        options.parser.error("give paths, or --demo" if not options.paths else "give paths or --demo, not both")
    from penstock.wordcount.command import WordcountOptions, run_wordcount

    return run_wordcount(
        WordcountOptions(
            tuple(options.paths),
            options.partitions,
            options.top,
            options.verify,
            options.json,
            options.demo,
            options.compare,
        )
    )


def _inspect(options: argparse.Namespace) -> int:
    from penstock.inspection import inspect_checkpoints

    return inspect_checkpoints(options.location, verify=options.verify, json=options.json)


def _bench(options: argparse.Namespace) -> int:
    from penstock.bench import command

    if options.bench in command.KINDS:
        told = command.AllOptions(
            options.scale, options.repeat, options.write, options.readme, options.page, options.json
        )
        return command.bench_sections(options.bench, told)
    chosen = command.BenchOptions(options.rows, options.keys, options.repeat, options.partitions, options.json)
    return command.bench_exchange(chosen)


def _bench_start(options: argparse.Namespace) -> int:
    from penstock.bench.start import StartOptions, bench_start

    return bench_start(StartOptions(options.repeat, options.slots, options.json))


def _bench_programs(options: argparse.Namespace) -> int:
    from penstock.bench.program_runs import ProgramOptions, bench_programs

    return bench_programs(ProgramOptions(options.scale, options.repeat, tuple(options.only), options.json))


def _torture(options: argparse.Namespace) -> int:
    from penstock.torture import TortureOptions, torture

    given = (options.seed, options.duration, options.tpch_runs, options.grid)
    compared = (options.programs, options.results, options.setting)
    worlds = (options.world, options.world_spark)
    return torture(TortureOptions(*given, options.session, options.query, *compared, *worlds))


if __name__ == "__main__":
    sys.exit(main())
