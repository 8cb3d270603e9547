# SPDX-License-Identifier: Apache-2.0
"""A working day of a user of Structured Streaming: its triggers, sinks and functions, on Spark."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.spark.hints import PenstockWarning
from penstock_bench.workers import worker_pids
from session_probe import queries_ended, wait_until

pytestmark = pytest.mark.spark

WAIT = 60.0


@pytest.fixture(autouse=True)
def ended(spark: Any) -> Iterator[None]:
    """No query outlives its test, and slots come back."""
    yield from queries_ended(spark)


def arrive(folder: Path, first: int, count: int, lines: int = 300) -> None:
    """So many files of numbered lines, each of which appears whole."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        text = "".join(f"{number}:{line}\n" for line in range(lines))
        (folder / f".{number}").write_text(text)
        (folder / f".{number}").rename(folder / f"{number}.txt")


def lines_of(files: int, lines: int = 300) -> Counter[str]:
    """The lines of as many files, each once."""
    return Counter(f"{number}:{line}" for number in range(files) for line in range(lines))


def values_in(folder: Path) -> Counter[str]:
    """The values that a reader of a folder sees."""
    return Counter(value for path in folder.glob("part-*") for value in pq.read_table(path)["value"].to_pylist())


def test_available_now_three_times_over_a_folder_that_grows(spark: Any, tmp_path: Path) -> None:
    """Each run reads what has come and ends by itself; a worker is killed in the second: each line once."""
    for run in range(3):
        arrive(tmp_path / "in", run * 4, 4)
        lines = penstock.readStream(spark).text(str(tmp_path / "in")).rebalance(2)
        writer = lines.writeStream.trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoints")).queryName(f"now {run}")
        if run == 2:
            with pytest.warns(PenstockWarning, match="once=True"):
                writer.trigger(once=True)
        query = writer.start(str(tmp_path / "out"))
        if run == 1:
            wait_until("workers run", worker_pids, WAIT)
            for pid in worker_pids():  # some of them may be idle
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert query.awaitTermination(WAIT) is True
        assert values_in(tmp_path / "out") == lines_of((run + 1) * 4)
