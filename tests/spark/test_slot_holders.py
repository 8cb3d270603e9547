# SPDX-License-Identifier: Apache-2.0
"""A job that gets no slots: its error names the Spark jobs that hold them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from endless_jobs import Action, all_slots_work
from penstock.errors import SlotsError
from penstock.testing import DEADLINE, wait_until
from session_probe import mark, marks

pytestmark = pytest.mark.spark

SLOTS = 8
TIMEOUT = "spark.penstock.job.slotsTimeout"


def holding(folder: str) -> Callable[[int], None]:
    """A task that holds its slot until `release` appears."""

    def hold(number: int) -> None:
        mark(f"{folder}/held")
        wait_until(Path(folder, "release").exists, "its release")

    return hold


def test_the_error_names_who_holds_the_slots(spark: Any, tmp_path: Path) -> None:
    """Number, description, group and tasks of a foreign job; when it has ended, all slots work again."""
    context = spark.sparkContext

    def foreign() -> None:
        context.setJobGroup("night", "a long read")
        context.parallelize(range(SLOTS), SLOTS).foreach(holding(str(tmp_path)))

    action = Action(foreign)
    try:
        wait_until(lambda: len(marks(tmp_path / "held")) == SLOTS, "a foreign job has all slots")
        spark.conf.set(TIMEOUT, "1s")
        stream = penstock.fromDataFrame(spark.range(0, 10, 1, 2)).keyBy("id", numPartitions=2, mode="pipelined")
        with pytest.raises(SlotsError, match=r"Tasks are running of Spark job \d+ \(a long read, group night\): 8"):
            stream.run()
    finally:
        spark.conf.unset(TIMEOUT)
        (tmp_path / "release").touch()
        outcome = action.wait(DEADLINE)
    assert outcome is None
    all_slots_work(spark)
