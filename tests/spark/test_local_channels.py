# SPDX-License-Identifier: Apache-2.0
"""The channels of one host's environment for jobs whose tasks are all beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.machine.memory import machine_memory
from penstock.settings import Settings
from session_probe import SessionProbe

pytestmark = pytest.mark.spark

_ROWS = 2_000_000
_LIMIT_BYTES = 150 << 20


def _exchange(spark: Any, folder: Path) -> int:
    """Rows that arrive after a keyed exchange of a Parquet file."""
    path = folder / "rows.parquet"
    numbers = np.arange(_ROWS)
    pq.write_table(pa.table({"k": numbers % 97, "v": numbers}), path, row_group_size=_ROWS // 8)
    stream = penstock.readParquet(spark, str(path)).keyBy("k", numPartitions=3)
    return sum(row.n for row in stream.agg(n=("v", "count")).toDF().collect())


def test_local_channels_never_touch_tcp(spark: Any, tmp_path: Path) -> None:
    """After jobs with several producers and consumers on one host no connection was opened or accepted."""
    assert _exchange(spark, tmp_path) == _ROWS
    figures = SessionProbe(spark).statistics()
    assert (figures["connections_opened"], figures["connections_accepted"]) == (0, 0)
    assert figures["segments_in_use"] == figures["hybrid_segments"], "more than the result, which is in memory still"


@pytest.mark.thorough
def test_the_environment_needs_its_pool_and_little_more(spark: Any, tmp_path: Path) -> None:
    """Beside the shared pool the environment process takes less than 150 MB, whatever went through it."""
    assert _exchange(spark, tmp_path) == _ROWS
    status = Path(f"/proc/{SessionProbe(spark).environment_pid()}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    private = int(fields["RssAnon"].split()[0]) * 1024
    assert private < _LIMIT_BYTES
    pool = Settings().network.memory_on(machine_memory())
    assert int(fields["VmRSS"].split()[0]) * 1024 < pool + _LIMIT_BYTES
