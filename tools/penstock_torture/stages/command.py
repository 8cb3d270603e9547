# SPDX-License-Identifier: Apache-2.0
"""Runs stages, whole queries, those beside Structured Streaming and starts, and prints those that are wrong."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.testing import DEADLINE
from penstock_torture.harm import own_temporary_folder
from penstock_torture.stages.queries import run_query
from penstock_torture.stages.run import described, run_stage
from penstock_torture.stages.streaming_runs import NOT_COMPARED, compare_runs
from penstock_torture.starts import run_start

Say = Callable[[str], None]
Run = Callable[[int, Path], tuple[str, str]]
_AT_ONCE = 4
"""Queries beside Structured Streaming, each of which waits for most of its time."""


def torture_stages(seed: int, numbers: tuple[int, int, int, int], say: Say) -> list[str]:
    """So many stages, queries, queries beside Structured Streaming, and starts from this seed on; what is wrong."""
    stages, queries, streaming, starts = numbers
    wrong = _stages(range(seed, seed + stages), say) if stages else []
    with own_temporary_folder():
        if queries:
            wrong += _queries("stage-queries", range(seed, seed + queries), run_query, say)
        if starts:
            wrong += _queries("starts", range(seed, seed + starts), run_start, say)
        if streaming:
            with _spark() as spark:
                compare: Run = lambda one, folder: compare_runs(one, spark.newSession(), folder)  # noqa: E731
                wrong += _queries("stage-streaming", range(seed, seed + streaming), compare, say, _AT_ONCE)
    return wrong


def _stages(seeds: range, say: Say) -> list[str]:
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    for seed in seeds:
        ending = run_stage(seed)
        counts[ending.kind] += 1
        if ending.wrong:
            wrong.append(f"stage {seed}")
            for line in described(seed, ending):
                say(line)
            say(f"    again: python -m penstock_torture --stages 1 --seed {seed}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    say(f"stages: {counts.total()} ({kinds}), {len(wrong)} wrong")
    return wrong


def _queries(kind: str, seeds: range, run: Run, say: Say, at_once: int = 1) -> list[str]:
    def ran(seed: int) -> tuple[str, str]:
        # A query of Spark's that does not end in time still writes there.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return run(seed, Path(folder))

    wrong: list[str] = []
    with ThreadPoolExecutor(at_once) as pool:
        for number, (seed, (words, reason)) in enumerate(zip(seeds, pool.map(ran, seeds), strict=True), 1):
            if words.startswith(NOT_COMPARED):
                say(f"{kind} {seed}: {words[:300]}")
            if reason:
                wrong.append(f"{kind} {seed}")
                say(f"{kind} {seed} ({words}): {reason}")
                say(f"    again: python -m penstock_torture --{kind} 1 --seed {seed}")
            if number % 20 == 0:
                say(f"{kind}: {number}, up to seed {seed}, {len(wrong)} wrong")
    say(f"{kind}: {len(seeds)}, {len(wrong)} wrong")
    return wrong


@contextmanager
def _spark() -> Iterator[Any]:
    from penstock.spark.session import open_session

    limits = ("spark.python.authenticate.socketTimeout", "spark.penstock.job.slotsTimeout")
    patient = dict.fromkeys(limits, f"{DEADLINE:g}s")  # a busy machine starts Python workers in its own time
    conf = {"spark.master": "local[16]", "spark.log.level": "OFF", "spark.sql.session.timeZone": "UTC"}
    cheap = {"spark.sql.shuffle.partitions": "1", "spark.sql.codegen.wholeStage": "false"}  # each plan runs once
    with open_session(
        "penstock-torture", None, {**conf, **patient, **cheap, "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    ) as spark:
        spark.sparkContext.setLogLevel("OFF")
        yield spark
