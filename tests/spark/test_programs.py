# SPDX-License-Identifier: Apache-2.0
"""The programs of `penstock_bench programs`, small: both forms give the same rows, and ours is no longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effort import some_of
from penstock_bench.programs.answers import difference
from penstock_bench.programs.catalogue import PROGRAMS
from penstock_bench.programs.program import Program
from session_probe import conf

ROWS = 1_500


@pytest.fixture(scope="module")
def session(spark: Any) -> Iterator[Any]:
    """The folder's session; Spark's own shuffle in two partitions, and both sides without adaptive stages."""
    with conf(spark, {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}):
        yield spark


@pytest.mark.spark
@pytest.mark.parametrize("program", some_of(PROGRAMS, 6), ids=lambda program: program.name.replace(" ", "-"))
def test_both_forms_give_the_same_rows(session: Any, program: Program, tmp_path: Path) -> None:
    """Once each, on a few thousand rows; there are rows to compare."""
    program.write(tmp_path, ROWS)
    mine, theirs = (form[0](session, str(tmp_path)) for form in (program.penstock, program.pyspark))
    mine, theirs = (given.toArrow() if hasattr(given, "toArrow") else given for given in (mine, theirs))
    assert mine.num_rows > 0
    assert difference(mine, theirs) is None
