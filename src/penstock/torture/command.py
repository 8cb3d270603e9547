# SPDX-License-Identifier: Apache-2.0
"""Runs cases until the time is over; three without Spark for each one with it."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pyarrow as pa

from penstock.shuffle.errors import PenstockError
from penstock.testing.local_runner import run_local
from penstock.torture.harm import Harm, leftovers, own_temporary_folder
from penstock.torture.recipe import Recipe, in_order, random_recipe

SLOTS = 12
LOCAL_PER_SPARK = 3
_CASE_SECONDS = 90.0


def torture(seed: int, duration: float) -> int:
    """Torture for that many seconds; 0 where all went well, else 1. Prints a line per case."""
    from penstock.spark.session import open_session

    say(f"seed {seed}, {duration} s")
    with own_temporary_folder():
        with open_session("penstock-torture", SLOTS) as spark:
            application = spark.sparkContext.applicationId
            number, failures = _run_cases(seed, time.monotonic() + duration, spark)
        left = leftovers(application)
    for item in left:
        say(f"left behind: {item}")
    say(f"seed {seed}: {number} cases, {len(failures)} failures, {len(left)} left behind")
    return 1 if failures or left else 0


def _run_cases(seed: int, end: float, spark: Any) -> tuple[int, list[str]]:
    failures: list[str] = []
    number = 0
    while time.monotonic() < end:
        is_spark = number % (LOCAL_PER_SPARK + 1) == LOCAL_PER_SPARK
        failures += _shown(random_recipe(seed, number, spark=is_spark), spark if is_spark else None)
        number += 1
    return number, failures


def run_case(recipe: Recipe, spark: Any = None) -> tuple[bool, str]:
    """Whether a case ended well, and how it ended. A case that does not end is left behind."""
    outcome: list[tuple[bool, str]] = []
    worker = threading.Thread(target=lambda: outcome.append(_outcome(recipe, spark)), daemon=True)
    worker.start()
    worker.join(_CASE_SECONDS)
    return outcome[0] if outcome else (False, f"did not end within {_CASE_SECONDS:.0f} s")


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
