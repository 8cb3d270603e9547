# SPDX-License-Identifier: Apache-2.0
"""The example of a plug-in under the whole engine: a job whose rows no environment process ever sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from folder_harness import FolderShuffleService
from penstock.testing import wait_until
from penstock.testing.sources import fromBatches
from penstock_torture.process_launcher import Nursery
from process_cluster import PRELOADED, ProcessCluster

pytestmark = pytest.mark.processes

WAIT = 60.0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessCluster]:
    """Two executors that share a folder."""
    monkeypatch.setenv("FOLDER_SHUFFLE", str(tmp_path))
    with Nursery(list(PRELOADED)) as nursery:
        cluster = ProcessCluster(nursery)
        yield cluster
        cluster.close()
    assert not list(tmp_path.iterdir()), "the folder goes with the application"


def test_a_job_runs_over_a_service_without_an_environment_process(cluster: ProcessCluster, tmp_path: Path) -> None:
    """All rows come through files, which go when they were read."""
    rows = pa.table({"k": [n % 7 for n in range(1000)], "v": list(range(1000))})
    stream = fromBatches(rows.to_batches(max_chunksize=100), partitions=3)
    keyed = stream.keyBy("k", numPartitions=2, mode="blocking", service=FolderShuffleService.name)
    finished = cluster.submit(keyed.agg(total=("v", "sum"))).wait(WAIT)
    found = cluster.read(finished, pa.schema([("k", pa.int64()), ("total", pa.int64())]))
    assert found.sort_by("k").to_pydict() == {
        "k": list(range(7)),
        "total": [sum(range(k, 1000, 7)) for k in range(7)],
    }
    (folder,) = tmp_path.iterdir()
    wait_until(lambda: len(list(folder.glob("*/*.released"))) == 3, "three partitions were there, and are released")
    assert not list(folder.glob("*/*/"))
