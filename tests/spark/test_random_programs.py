# SPDX-License-Identifier: Apache-2.0
"""Random programs beside PySpark: a few seeds of the many that `make torture` runs."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from effort import some_of
from penstock_torture.programs import run, verbs
from penstock_torture.programs.program import Program, Shape

pytestmark = pytest.mark.spark

SEEDS = range(15)
SMALL = Shape(rows=(0, 1, 20, 60), steps=4, folders=0.0)


@pytest.mark.parametrize("seed", some_of(SEEDS, 4))
def test_a_program_gives_what_pyspark_gives(spark: Any, seed: int) -> None:
    """The same rows, types and nullability, an error on both sides, or a difference that a page names."""
    ending = run.run_program(seed, spark, SMALL)
    assert ending.outcome in run.WELL, f"{ending.said}\n{ending.text}"


@pytest.mark.thorough
def test_a_seed_repeats_itself(spark: Any) -> None:
    """The same text from the same seed, another from another."""
    shape = Shape(rows=(1,), steps=2, folders=0.0)
    first, second, other = (run.run_program(seed, spark, shape).text for seed in (4, 4, 5))
    assert first == second != other


def test_a_row_that_is_lost_is_noticed(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb of ours that keeps other rows than Spark's is WRONG, and the text shows the program."""
    monkeypatch.setattr(penstock.Stream, "distinct", lambda stream: stream.limit(0))
    monkeypatch.setattr(penstock.Stream, "dropDuplicates", lambda stream, _: stream.limit(0))
    ending = run.run_program(1, spark, Shape(rows=(20,), steps=1, folders=0.0), ((verbs.made_distinct, 1),))
    assert ending.outcome == run.WRONG
    assert "only theirs" in ending.said or "ours" in ending.said
    assert "# PySpark" in ending.text


def test_another_nullability_is_noticed(spark: Any) -> None:
    """Rows that are right under another schema are WRONG too."""

    def step(program: Program, number: str) -> None:
        program.step(number, "{s}.select('nullif(id, 1L) AS id')", "{d}.selectExpr('coalesce(id, 1L) AS id')")

    ending = run.run_program(0, spark, Shape(rows=(0,), steps=1, folders=0.0), ((step, 1),))
    assert ending.outcome == run.WRONG
    assert "schema behind" in ending.said
