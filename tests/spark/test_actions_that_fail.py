# SPDX-License-Identifier: Apache-2.0
"""A DataFrame of toDF() whose action failed is as good as new: the next action runs the job again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock

pytestmark = pytest.mark.spark

ROWS = 2000


def failing_until(path: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A stage that fails as long as there is no such file, and notes each run in a file beside it."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        with Path(path + ".runs").open("a") as runs:
            runs.write("x")
        if not Path(path).exists():
            raise ValueError("the weather is bad")
        yield from batches

    return stage


def runs(path: Path) -> int:
    """The number of times that the stage has run."""
    return len(Path(f"{path}.runs").read_text())


@pytest.mark.parametrize("partitions", [1, None])
def test_the_next_action_runs_the_job_again(spark: Any, tmp_path: Path, partitions: int | None) -> None:
    """The same action on the same DataFrame, others between, with stages that could fill all slots."""
    good = tmp_path / "good"
    source = penstock.fromDataFrame(spark.range(0, ROWS, 1, 1).selectExpr("id % 7 AS k"))
    keyed = source.mapInArrow(failing_until(str(good)), "k long").keyBy("k", numPartitions=partitions)
    frame = keyed.agg(n=("*", "count")).toDF()
    for round_ in (1, 2):
        with pytest.raises(Exception, match="ValueError: the weather is bad"):
            frame.collect()
        assert runs(good) == round_
    with pytest.raises(Exception, match="ValueError: the weather is bad"):
        frame.count()
    good.touch()
    rows = frame.collect()
    assert sorted((row.k, row.n) for row in rows) == [(k, len(range(k, ROWS, 7))) for k in range(7)]
    made = runs(good)
    assert frame.collect() == rows
    assert frame.count() == 7
    assert runs(good) == made


def test_a_failed_frame_in_another_pipeline(spark: Any, tmp_path: Path) -> None:
    """A pipeline over a DataFrame whose job fails has its error, and works when that one does."""
    good = tmp_path / "good"
    inner = penstock.fromDataFrame(spark.range(0, ROWS, 1, 1)).mapInArrow(failing_until(str(good)), "id long").toDF()
    outer = penstock.repartition(inner, 2, "id")
    with pytest.raises(Exception, match="ValueError: the weather is bad"):
        outer.collect()
    good.touch()
    assert len(outer.collect()) == ROWS
