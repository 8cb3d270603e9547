# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock_bench`: all benches but those that stand alone, by their names, and `all` of them."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import SettingError
from penstock_bench import catalogue
from penstock_bench.cases import (
    CONSUMERS,
    PRODUCERS,
    ExchangeForm,
    dataframe_case,
    exchange_case,
    group_case,
    words_case,
)
from penstock_bench.checkpoints import SLOTS as CHECKPOINT_SLOTS
from penstock_bench.checkpoints import checkpoint_outcomes
from penstock_bench.copies import copy_outcomes
from penstock_bench.hybrid import exchange_outcomes, overlap_outcomes
from penstock_bench.latency import FLUSH_TIMEOUT, latency_outcomes
from penstock_bench.lone_tasks import EXECUTORS, lone_outcomes
from penstock_bench.loopback import loopback_outcomes
from penstock_bench.measure import Case, Outcome, compare
from penstock_bench.metrics_cost import metrics_outcomes
from penstock_bench.page_cost import page_outcomes
from penstock_bench.pages import check_marks, write_pages
from penstock_bench.recovery import CLUSTER
from penstock_bench.rows import write_numbers, write_texts
from penstock_bench.services import (
    host_service,
    remote_service,
    service_outcomes,
    spark_service,
)
from penstock_bench.session import bench_session, collect_garbage, machine
from penstock_bench.slopes import memory_outcomes, rate_outcome
from penstock_bench.streaming import SLOTS, recovery_outcome, streaming_outcomes
from penstock_bench.tables import print_table
from penstock_bench.tls_cost import tls_outcomes
from penstock_bench.widths import little_memory_outcomes, width_outcomes
from wordcount.files import find_demo_files

NUMBER_ROWS = 20_000_000
FEW_ROWS = 1_000
_LEAST_MEMORY = 8 << 20


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of the command line of `bench exchange`."""

    rows: int = NUMBER_ROWS
    keys: str = "both"
    repeat: int = 3
    partitions: int = CONSUMERS
    json: bool = False


@dataclass(frozen=True, slots=True)
class AllOptions:
    """The options of the command line of `bench all` and of the benches of some sections."""

    scale: float = 1.0
    repeat: int = 3
    write: bool = True
    readme: str = "README.md"
    page: str = "docs/benchmarks.md"
    json: bool = False


def bench_exchange(options: BenchOptions) -> int:
    """The exchanges by key between Python stages."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        bench_session(PRODUCERS + options.partitions) as spark,
    ):
        outcomes = _exchanges(spark, options, Path(folder))
    _show(outcomes, options.json)
    return 0


def bench_sections(kind: str, options: AllOptions) -> int:
    """Measure one of `KINDS`; raises SettingError for options that can't work before anything is measured."""
    if not options.scale > 0:
        raise SettingError(f"--scale must be above 0, not {options.scale}")
    readme, page = Path(options.readme), Path(options.page)
    if options.write:
        check_marks(readme)
        check_marks(page)
    outcomes = KINDS[kind](options)
    if options.write:
        write_pages(readme, page, outcomes, machine())
    _show(outcomes, options.json)
    return 0


def _all(options: AllOptions) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, bench_session() as spark:
        outcomes = _everything(spark, options, Path(folder))
    for measure in (_hybrids, _services, _latencies, _copies, _metrics, _tls, _pages, _streams):
        outcomes += measure(options)
    for measure in (_lone_tasks, _checkpoints):
        outcomes += measure(options)
    return outcomes


def _blocking(options: AllOptions) -> list[Outcome]:
    with bench_session() as spark:
        outcomes = width_outcomes(spark, options.scale, options.repeat, say)
    with bench_session(conf={"spark.penstock.network.memory": "64m"}) as spark:
        return outcomes + little_memory_outcomes(spark, options.scale, say)


def _checkpoints(options: AllOptions) -> list[Outcome]:
    with bench_session(CHECKPOINT_SLOTS) as spark:
        return checkpoint_outcomes(spark, options.repeat, say)


def _streams(options: AllOptions) -> list[Outcome]:
    with bench_session(SLOTS) as spark:
        outcomes = streaming_outcomes(spark, options.scale, options.repeat, say)
    with bench_session(conf=CLUSTER) as spark:
        outcomes.append(recovery_outcome(spark, catalogue.STREAM_RECOVERY_CLUSTER, options.repeat, say))
    return outcomes


def _lone_tasks(options: AllOptions) -> list[Outcome]:
    with bench_session(conf=EXECUTORS) as spark:
        return lone_outcomes(spark, options.repeat, say)


def _services(options: AllOptions) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        data = write_numbers(Path(folder, "numbers"), max(1, int(NUMBER_ROWS * options.scale)))
        kept = Path(folder, "kept")
        kept.mkdir()
        with (
            host_service(kept) as conf,
            spark_service(kept) as more,
            remote_service(kept) as remote,
            bench_session(conf={**conf, **more, **remote}) as spark,
        ):
            outcomes = service_outcomes(spark, data, options.repeat, say)
        return outcomes + loopback_outcomes(Path(folder), data.bytes, options.repeat, say)


def _latencies(_: AllOptions) -> list[Outcome]:
    with bench_session(conf={"spark.penstock.network.flushTimeout": FLUSH_TIMEOUT}) as spark:
        return latency_outcomes(spark, say)


def _copies(options: AllOptions) -> list[Outcome]:
    with bench_session() as spark:
        return copy_outcomes(spark, options.scale, options.repeat, say)


def _metrics(options: AllOptions) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        return metrics_outcomes(Path(folder), options.scale, options.repeat, say)


def _pages(options: AllOptions) -> list[Outcome]:
    with bench_session(SLOTS) as spark:
        return page_outcomes(spark, options.scale, say)


def _tls(options: AllOptions) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        return tls_outcomes(Path(folder), options.scale, options.repeat, say)


def _hybrids(options: AllOptions) -> list[Outcome]:
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        data = write_numbers(Path(folder), max(1, int(NUMBER_ROWS * options.scale)))
        shares = (
            ("all", 2 * data.bytes, catalogue.HYBRID_ALL),
            ("a tenth", data.bytes // 10, catalogue.HYBRID_TENTH),
        )
        for share, memory, row in shares:
            conf = {"spark.penstock.network.memory": str(max(memory, _LEAST_MEMORY))}
            with bench_session(conf=conf) as spark:
                outcomes += exchange_outcomes(spark, data, share, options.repeat, say)
                form = ExchangeForm("id", mode="hybrid")
                case = exchange_case(spark, row, data, form)
                outcomes.append(_comparison(spark)(case, options.repeat))
    with bench_session() as spark:
        return outcomes + overlap_outcomes(spark, options.scale, options.repeat, say)


KINDS: dict[str, Callable[[AllOptions], list[Outcome]]] = {
    "all": _all,
    "blocking": _blocking,
    "hybrid": _hybrids,
    "services": _services,
    "latency": _latencies,
    "copies": _copies,
    "metrics": _metrics,
    "tls": _tls,
    "page": _pages,
    "streaming": _streams,
    "alone": _lone_tasks,
    "checkpoints": _checkpoints,
}
"""The benches, by their names on the command line."""


def _exchanges(spark: Any, options: BenchOptions, folder: Path) -> list[Outcome]:
    outcomes = []
    run = _comparison(spark)
    if options.keys in ("int", "both"):
        numbers = write_numbers(folder / "numbers", options.rows)
        case = exchange_case(spark, catalogue.PIPELINED, numbers, ExchangeForm("id", options.partitions))
        outcomes.append(run(case, options.repeat))
        form = ExchangeForm("id", options.partitions, "blocking")
        outcomes.append(run(exchange_case(spark, catalogue.BLOCKING, numbers, form), options.repeat))
        outcomes.append(run(group_case(spark, catalogue.GROUPS, numbers), options.repeat))
    if options.keys in ("string", "both"):
        texts = write_texts(folder / "texts", max(1, options.rows // 2))
        case = exchange_case(spark, catalogue.STRINGS, texts, ExchangeForm("key", options.partitions))
        outcomes.append(run(case, options.repeat))
    return outcomes


def _everything(spark: Any, options: AllOptions, folder: Path) -> list[Outcome]:
    rows = max(1, int(NUMBER_ROWS * options.scale))
    run = _comparison(spark)
    outcomes = _exchanges(spark, BenchOptions(rows, repeat=options.repeat), folder)
    numbers = write_numbers(folder / "numbers", rows)
    case = dataframe_case(spark, catalogue.DATAFRAME, numbers)
    outcomes.append(run(case, options.repeat))
    outcomes.append(rate_outcome(spark, options.scale, options.repeat, say))
    few = write_numbers(folder / "few", FEW_ROWS)
    case = exchange_case(spark, catalogue.FEW_ROWS, few, ExchangeForm("id"))
    outcomes.append(run(case, 3 * options.repeat))
    case = words_case(spark, catalogue.WORDS, find_demo_files(), folder)
    outcomes.append(run(case, options.repeat))
    outcomes += width_outcomes(spark, options.scale, options.repeat, say)
    return outcomes + memory_outcomes(spark, options.scale, say)


def _comparison(spark: Any) -> Callable[[Case, int], Outcome]:
    return lambda case, repeat: compare(case, repeat, say, lambda: collect_garbage(spark))


def _show(outcomes: list[Outcome], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"machine": machine(), "cases": [item.to_json() for item in outcomes]}) + "\n")
    else:
        print_table(outcomes, machine())


def say(line: str) -> None:
    """Progress goes to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
