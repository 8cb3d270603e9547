# SPDX-License-Identifier: Apache-2.0
"""`penstock bench exchange` and `penstock bench all`."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench import rows as bench_rows
from penstock.bench.cases import exchange_case, group_case
from penstock.bench.measure import Outcome, compare
from penstock.bench.session import SLOTS, bench_session, machine

NUMBER_ROWS = 20_000_000


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line says."""

    rows: int = NUMBER_ROWS
    keys: str = "both"
    repeat: int = 3
    slots: int = SLOTS
    json: bool = False


def say(line: str) -> None:
    """Progress goes to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def bench_exchange(options: BenchOptions) -> int:
    """The cases of exchanges by key between Python stages."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, bench_session(options.slots) as spark:
        outcomes = exchange_outcomes(spark, options, Path(folder))
    show(outcomes, options)
    return 0


def exchange_outcomes(spark: Any, options: BenchOptions, folder: Path) -> list[Outcome]:
    """Run them; the Parquet files stay in the folder."""
    outcomes = []
    if options.keys in ("int", "both"):
        say(f"writing {options.rows:,} rows of numbers")
        data = bench_rows.write_numbers(folder / "numbers", options.rows)
        outcomes.append(compare(exchange_case(spark, "exchange by an integer", data, "id"), options.repeat, say))
        outcomes.append(compare(group_case(spark, "groupBy().applyInArrow", data), options.repeat, say))
    if options.keys in ("string", "both"):
        count = max(1, options.rows // 2)
        say(f"writing {count:,} rows of texts")
        data = bench_rows.write_texts(folder / "texts", count)
        outcomes.append(compare(exchange_case(spark, "exchange by a string", data, "key"), options.repeat, say))
    return outcomes


def show(outcomes: list[Outcome], options: BenchOptions) -> None:
    """Print one JSON object or a table."""
    if options.json:
        sys.stdout.write(json.dumps({"machine": machine(), "cases": [item.to_json() for item in outcomes]}) + "\n")
        return
    for item in outcomes:
        sys.stdout.write(json.dumps(item.to_json()) + "\n")
