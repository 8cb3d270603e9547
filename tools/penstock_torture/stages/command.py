# SPDX-License-Identifier: Apache-2.0
"""Runs stages, whole queries and queries beside Structured Streaming, and prints those that are wrong."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock_torture.harm import own_temporary_folder
from penstock_torture.stages.queries import run_query
from penstock_torture.stages.run import described, run_stage
from penstock_torture.stages.streaming_runs import compare_runs

Say = Callable[[str], None]


def torture_stages(seed: int, numbers: tuple[int, int, int], say: Say) -> list[str]:
    """So many stages, whole queries and queries beside Structured Streaming from this seed on; what is wrong."""
    stages, queries, streaming = numbers
    wrong = _stages(range(seed, seed + stages), say) if stages else []
    with own_temporary_folder():
        if queries:
            wrong += _queries("queries", range(seed, seed + queries), run_query, say)
        if streaming:
            with _spark() as spark:
                seeds = range(seed, seed + streaming)
                wrong += _queries("streaming", seeds, lambda one, folder: compare_runs(one, spark, folder), say)
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


def _queries(kind: str, seeds: range, run: Callable[[int, Path], tuple[str, str]], say: Say) -> list[str]:
    wrong: list[str] = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            words, reason = run(seed, Path(folder))
        if reason:
            wrong.append(f"{kind} {seed}")
            say(f"{kind} {seed} ({words}): {reason}")
            say(f"    again: python -m penstock_torture --stage-{kind} 1 --seed {seed}")
    say(f"{kind}: {len(seeds)}, {len(wrong)} wrong")
    return wrong


@contextmanager
def _spark() -> Iterator[Any]:
    from penstock.spark.session import open_session

    conf = {"spark.master": "local[8]", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}
    with open_session("penstock-torture", None, {**conf, "spark.sql.session.timeZone": "UTC"}) as spark:
        spark.sparkContext.setLogLevel("OFF")
        yield spark
