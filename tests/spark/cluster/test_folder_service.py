# SPDX-License-Identifier: Apache-2.0
"""The example of a plug-in on two executors: a session that names it moves nothing through any environment.

The file of the plug-in goes to the executors as users send theirs, and the folder is one that both can see.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import penstock
import pools
from folder_harness import FolderShuffleService
from penstock.api.stream import Stream
from penstock.errors import PlanError, SettingError
from penstock.spark.runtime import SparkRuntime
from penstock.testing import wait_until
from penstock_bench.environment import environment_pids
from pools import has_mapped_a_pool, with_pools
from process_cluster import lives
from sessions import CLUSTER, Kind, Sessions
from underway import listed

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

FOLDER = FolderShuffleService.name
FOLDERS = Kind(CLUSTER.master, CLUSTER.slots, (*CLUSTER.conf, ("spark.penstock.shuffle.service", FOLDER)))
ROWS = 20_000
KEYS = 7
EXPECTED = [(key, len(range(key, ROWS, KEYS)), False) for key in range(KEYS)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that driver and executors share."""
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FOLDER_SHUFFLE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def session(sessions: Sessions, shared: Path) -> Iterator[Any]:
    """A session over the folder; nothing is left of it when it has stopped."""
    spark = sessions.of(FOLDERS)
    spark.sparkContext.addPyFile(sys.modules[FolderShuffleService.__module__].__file__)
    cloudpickle.register_pickle_by_value(pools)
    yield spark
    cloudpickle.unregister_pickle_by_value(pools)
    sessions.stop()
    assert not listed(shared)


def counted(spark: Any) -> Stream:
    """The number of rows of each key, and whether a task that made one has mapped a pool. In the default mode."""
    numbers = spark.range(0, ROWS, 1, 4).selectExpr("id % 7 AS k")
    mapped = penstock.fromDataFrame(numbers).mapInArrow(with_pools, "k long, mapped boolean").keyBy("k")
    return mapped.agg(n=("k", "count"), mapped=("mapped", "max")).mapInArrow(whole, "k long, n long, mapped boolean")


def whole(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of a stage behind an exchange, of which none has mapped a pool."""
    for batch in batches:
        assert not has_mapped_a_pool()
        yield batch


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """The rows in order."""
    return sorted(map(tuple, frame.collect()))


def environments(spark: Any) -> list[int]:
    """The environment processes of the application."""
    return [pid for pid in environment_pids(spark.sparkContext.applicationId) if lives(pid)]


def partitions(shared: Path) -> list[str]:
    """The partitions that lie in the folder."""
    return sorted(place.name for place in listed(shared, "folder-*/*/*/*/"))


def test_every_action_reads_its_result_from_the_folder(
    session: Any, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order, in part, twice, joined with itself; reader tasks and environments map nothing either."""
    frame = counted(session).toDF()
    assert rows(frame) == EXPECTED
    held = partitions(shared)
    assert held
    assert all("-result" in name for name in held)
    assert frame.count() == KEYS
    frame.orderBy("k").show()
    assert "|  0|2858|" in capsys.readouterr().out
    assert rows(frame.coalesce(1)) == EXPECTED
    assert frame.join(frame.selectExpr("k", "n AS other"), "k").count() == KEYS
    assert len(frame.take(3)) == 3
    assert partitions(shared) == held, "no action ran the job again"
    assert len(environments(session)) == 2
    assert not [pid for pid in environments(session) if has_mapped_a_pool(pid)]


def test_actions_of_a_stream(session: Any, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They give their rows to the driver, and no exchange stays."""
    assert counted(session).count() == KEYS
    assert rows(counted(session)) == EXPECTED
    counted(session).show()
    assert "|  0|2858|" in capsys.readouterr().out
    counted(session).run()
    wait_until(lambda: all("-result" in name for name in partitions(shared)), "their exchanges are released")


def test_a_persisted_stream(session: Any, shared: Path) -> None:
    """It is read from the folder by two jobs, and goes when it is told to."""
    kept = counted(session).persist()
    assert kept.count() == KEYS
    (info,) = penstock.datasets(session)
    assert (info.state, info.rows) == ("materialised", KEYS)
    assert rows(kept.rebalance(2).toDF()) == EXPECTED
    assert penstock.datasets(session)[0].state == "materialised"
    (result,) = SparkRuntime.of(session).persisted
    assert result.held is not None
    made = {Path(item.location).name for item in result.held.present}
    assert made <= set(partitions(shared))
    kept.unpersist()
    wait_until(lambda: not made & set(partitions(shared)), "its partitions are gone")


def test_rows_outlive_environments_and_executors(session: Any, shared: Path) -> None:
    """All processes that made the result are killed: it is read, and no job runs for it."""
    frame = counted(session).toDF()
    assert rows(frame) == EXPECTED
    held = partitions(shared)
    for pid in environments(session):
        os.kill(pid, signal.SIGKILL)
    assert rows(frame) == EXPECTED
    assert partitions(shared) == held


def test_what_a_folder_lacks_is_refused(session: Any, tmp_path: Path) -> None:
    """A mode by its name and the modes that there are; a stream by the service."""
    with pytest.raises(SettingError, match="has no mode 'pipelined': it has auto, blocking;"):
        penstock.fromDataFrame(session.range(3)).keyBy("id", mode="pipelined").toDF()
    rate = penstock.readStream(session).format("rate").load().keyBy("value").count()
    with pytest.raises(PlanError, match=f"the shuffle service '{FOLDER}', which carries no streams"):
        rate.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
