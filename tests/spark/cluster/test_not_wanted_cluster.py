# SPDX-License-Identifier: Apache-2.0
"""Two executors: producers on both stop when nobody wants their rows, also after a kill of the one that does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from endless_jobs import Action
from penstock.testing import wait_until
from rows_without_end import without_end
from session_probe import mark, marks

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

SCHEMA = "id long, source long"


def held(folder: str) -> Any:
    """A stage that gives no row until `go` is there, in whichever attempt."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark(f"{folder}/readers")
        for batch in batches:
            yield batch if Path(folder, "go").exists() else batch.slice(0, 0)

    return stage


@pytest.mark.parametrize(("mode", "is_killed"), [("pipelined", True), ("hybrid", False)])
def test_a_limit_ends_stages_on_both_hosts(cluster: Any, tmp_path: Path, mode: str, is_killed: bool) -> None:
    """Also where the reader is killed before it gives a row: its next attempt has enough of the next producers."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"id": [number]}), files / f"{number}.parquet")
    endless = penstock.readParquet(cluster, str(files), numPartitions=2)
    endless = endless.mapInArrow(without_end(str(tmp_path)), SCHEMA)
    stream = endless.rebalance(1, mode=mode).mapInArrow(held(str(tmp_path)), SCHEMA).limit(7)
    action = Action(stream.collect)
    wait_until(lambda: marks(tmp_path / "readers"), "the reader is there")
    if is_killed:
        os.kill(marks(tmp_path / "readers")[0], signal.SIGKILL)
        wait_until(lambda: len(marks(tmp_path / "readers")) == 2, "it is there again")
    (tmp_path / "go").touch()
    found = action.wait()
    assert not isinstance(found, Exception), found
    assert len(found) == 7
    wait_until(lambda: len(marks(tmp_path / "producer-closed")) >= 2, "all are closed")
