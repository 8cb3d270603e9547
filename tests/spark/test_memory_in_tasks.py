# SPDX-License-Identifier: Apache-2.0
"""Functions that use the memory of what they gave again, in Spark's tasks: rows are those of PySpark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from memory_again import KINDS, Kind, counts_of

pytestmark = pytest.mark.spark


def given(spark: Any, kind: Kind) -> Any:
    """The rows that the function gives in one task."""
    return kind.over(penstock.fromDataFrame(spark.range(0, 1, 1, 1))).select("v")


@pytest.mark.parametrize("name", ["read_only_view", "large"])
def test_rows_that_are_kept(spark: Any, name: str) -> None:
    """A persisted result, whose writer sorts what it holds, has each batch as it was given; also beyond 32 MB."""
    kept = given(spark, KINDS[name]).persist()
    try:
        assert counts_of(kept.toArrow()["v"]) == KINDS[name].counts(1)
    finally:
        kept.unpersist()


def test_rows_are_those_of_pyspark(spark: Any, tmp_path: Path) -> None:
    """Parquet files and an exchange in mixed mode have what PySpark gives with the same function."""
    kind = KINDS["read_only_view"]
    expected = counts_of(spark.range(0, 1, 1, 1).mapInArrow(kind.function, "v long").toArrow()["v"])
    assert expected == kind.counts(1)
    given(spark, kind).writeParquet(tmp_path / "written")
    assert counts_of(spark.read.parquet(str(tmp_path / "written")).toArrow()["v"]) == expected
    assert counts_of(given(spark, kind).broadcast(1, mode="hybrid").toArrow()["v"]) == expected
