# SPDX-License-Identifier: Apache-2.0
"""Runs random cases until the time is over, three without Spark for each with it; then TPC-H and the grid."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.testing.local_runner import run_local
from penstock_torture import long_query
from penstock_torture.cluster import open_cluster, spark_home
from penstock_torture.grid import cells, run_cell
from penstock_torture.harm import Harm, leftovers, own_temporary_folder
from penstock_torture.long_session import MASTER, LongSession
from penstock_torture.recipe import Recipe, in_order, random_recipe
from penstock_torture.session_figures import keep_little
from penstock_torture.tpch import WELL, torture_tpch

SLOTS = 12
LOCAL_PER_SPARK = 3
CASE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class TortureOptions:
    """Random cases for `duration` seconds, then so many TPC-H runs, then the kill grid if it is asked for.

    Or, where `session` is more than 0, one session held for so many minutes instead of all that; or, where `query`
    is, one streaming query left alone for so many, with `browsers` on its page or without; or, where `programs`
    is, so many random programs beside PySpark; or, where `stages` is, so many stages beside plain Python, and beside
    these whole queries, and so many `starts`; or, where `world` is, so many queries in a world that fails, and beside
    these `world_spark` on Spark, `world_connectors` with tables and the like, `world_batches` with tables by keys and
    functions for each batch.
    """

    seed: int
    duration: float
    tpch_runs: int = 0
    grid: bool = False
    session: int = 0
    query: int = 0
    browsers: bool = False
    programs: int = 0
    results: str = ""
    setting: str = ""
    stages: int = 0
    stage_queries: int = 0
    stage_streaming: int = 0
    starts: int = 0
    world: int = 0
    world_spark: int = 0
    world_connectors: int = 0
    world_batches: int = 0
    tables: int = 0


def torture(options: TortureOptions) -> int:
    """Torture; 0 where all went well, else 1. Prints a line per case, and at the end how many ended in which way."""
    worlds = (options.world, options.world_spark, options.world_connectors, options.world_batches)
    if any(worlds):
        from penstock_torture.world import torture_world

        results = Path(options.results) if options.results else None
        return torture_world((options.seed, *worlds), results, say)
    if options.programs:
        return _compare(options)
    stages = (options.stages, options.stage_queries, options.stage_streaming, options.starts)
    if any(stages):
        from penstock_torture.stages.command import torture_stages

        return 1 if torture_stages(options.seed, stages, say) else 0
    if options.tables:
        from penstock_torture.tables.command import torture_tables

        return 1 if torture_tables(options.seed, options.tables, say) else 0
    if options.session or options.query:
        return _hold(options)
    from penstock.spark.session import open_session

    seed = options.seed
    say(f"seed {seed}, {options.duration} s")
    failures: list[str] = []
    with own_temporary_folder(), spark_home():
        with open_session("penstock-torture", SLOTS) as spark:
            applications = [spark.sparkContext.applicationId]
            number, failures = _run_cases(seed, time.monotonic() + options.duration, spark)
            if options.tpch_runs:
                failures += _run_tpch(options, spark)
            if options.grid:
                failures += _run_grid(spark, "local", cluster=False)
        if options.grid:
            with open_cluster("penstock-torture") as spark:
                applications.append(spark.sparkContext.applicationId)
                failures += _run_grid(spark, "cluster", cluster=True)
        left = list(dict.fromkeys(item for application in applications for item in leftovers(application)))
    for item in left:
        say(f"left behind: {item}")
    for failure in failures:
        say(f"failed: {failure}")
    say(f"seed {seed}: {number} cases, {len(failures)} failures, {len(left)} left behind")
    return 1 if failures or left else 0


def _compare(options: TortureOptions) -> int:
    from penstock_torture.programs.command import ProgramOptions, torture_programs

    wanted = ProgramOptions(options.seed, options.programs, options.results, options.setting)
    failures = torture_programs(wanted, say)
    for failure in failures:
        say(f"failed: {failure}")
    return 1 if failures else 0


def _hold(options: TortureOptions) -> int:
    from penstock.spark.session import open_session

    held: LongSession | long_query.LongQuery
    if options.session:
        master, held = MASTER, LongSession(options.seed, options.session * 60.0, say)
    else:
        visited_by = "browsers" if options.browsers else "streams"
        master, held = long_query.MASTER, long_query.LongQuery(options.seed, options.query * 60.0, say, visited_by)
    conf = {"spark.master": master, "spark.log.level": "OFF"}
    keep_little()
    with own_temporary_folder():
        with open_session("penstock-torture", None, {**conf, "spark.local.dir": tempfile.gettempdir()}) as spark:
            application = spark.sparkContext.applicationId
            spark.sparkContext.setLogLevel("OFF")  # killed workers are no news
            failures = held.run(spark)
        failures += [f"left behind: {item}" for item in leftovers(application)]
    for failure in failures:
        say(f"failed: {failure}")
    return 1 if failures else 0


def _run_tpch(options: TortureOptions, spark: Any) -> list[str]:
    try:
        outcomes = torture_tpch(spark, options.seed, options.tpch_runs, say)
    except ValueError as error:
        say(f"FAIL tpch: {error}")
        return [f"tpch: {error}"]
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.items()))
    say(f"tpch, seed {options.seed}: {options.tpch_runs} runs: {counts}")
    return [f"tpch: {count} {kind}" for kind, count in outcomes.items() if kind not in WELL]


def _run_grid(spark: Any, where: str, *, cluster: bool) -> list[str]:
    failures = []
    chosen = cells(cluster=cluster)
    for number, cell in enumerate(chosen, 1):
        outcome = run_cell(spark, cell)
        ended = outcome.error or ("right" if outcome.is_right else "WRONG ROWS")
        again = " ".join(outcome.restarted) or "nothing"
        say(
            f"{'ok  ' if outcome.is_right else 'FAIL'} {where} {cell.name} {outcome.seconds:5.2f} s:"
            f" {ended}, {again} ran again ({number} of {len(chosen)})"
        )
        failures += [] if outcome.is_right else [f"{where} {cell.name}: {ended}"]
    return failures


def _run_cases(seed: int, end: float, spark: Any) -> tuple[int, list[str]]:
    failures: list[str] = []
    number = 0
    while time.monotonic() < end:
        is_spark = number % (LOCAL_PER_SPARK + 1) == LOCAL_PER_SPARK
        failures += _shown(random_recipe(seed, number, spark=is_spark), spark if is_spark else None)
        number += 1
    return number, failures


def run_case(recipe: Recipe, spark: Any = None, seconds: float = CASE_SECONDS) -> tuple[bool, str]:
    """Tell whether a case ended well, and how it ended. A case that does not end in time is left behind."""
    outcome: list[tuple[bool, str]] = []
    worker = threading.Thread(target=lambda: outcome.append(_outcome(recipe, spark)), daemon=True)
    worker.start()
    worker.join(seconds)
    return outcome[0] if outcome else (False, f"did not end within {seconds:g} s")


def say(line: str) -> None:
    """To standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _shown(recipe: Recipe, spark: Any) -> list[str]:
    began = time.monotonic()
    is_well, text = run_case(recipe, spark)
    seconds = time.monotonic() - began
    say(f"{'ok  ' if is_well else 'FAIL'} {recipe.name} {seconds:5.2f} s  {recipe.describe()}: {text}")
    return [] if is_well else [recipe.name]


def _outcome(recipe: Recipe, spark: Any) -> tuple[bool, str]:
    harm = Harm(spark, recipe.harm, recipe.harm_after)
    try:
        with harm:
            table = (
                run_local(recipe.stream(), slots=SLOTS) if spark is None else recipe.stream(spark).toDF().toArrow()
            )
    except Exception as error:  # noqa: BLE001 - which errors are right is what is being asked
        return _error_outcome(error, harm.struck or recipe.harm == "raise")
    expected = recipe.expected()
    found = in_order(pa.table(table.columns, names=table.column_names).cast(expected.schema))
    if found.equals(expected):
        return True, f"{found.num_rows} rows"
    return False, f"{found.num_rows} rows that differ from the expected {expected.num_rows}"


def _error_outcome(error: Exception, is_expected: bool) -> tuple[bool, str]:
    is_clear = isinstance(error, PenstockError) or type(error).__module__.partition(".")[0] in ("pyspark", "py4j")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    telling = [line for line in lines if "Error: " in line and not line.startswith("pyspark.")] or lines
    text = f"{type(error).__name__}: {telling[-1]}"
    return is_expected and is_clear and str(error).strip() != "", text[:200]
