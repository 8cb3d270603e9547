# SPDX-License-Identifier: Apache-2.0
"""Random queries beside Structured Streaming, run by run: a short form of `penstock_torture --stage-streaming`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from effort import some_of
from penstock_torture.stages.streaming_runs import compare_runs

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("seed", some_of((5, 8, 12, 13, 22, 23, 36), 7))
def test_each_run_gives_what_sparks_run_gives(spark: Any, tmp_path: Path, seed: int) -> None:
    """Files come, both run with `availableNow`: the same rows after each run, through kills and at other widths."""
    session = spark.newSession()
    for name, value in (("shuffle.partitions", "1"), ("session.timeZone", "UTC"), ("codegen.wholeStage", "false")):
        session.conf.set(f"spark.sql.{name}", value)
    words, wrong = compare_runs(seed, session, tmp_path)
    assert not wrong, f"{words}: {wrong}"
