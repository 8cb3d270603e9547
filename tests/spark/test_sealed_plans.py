# SPDX-License-Identifier: Apache-2.0
"""A read task unpickles out of an answer a plan that the application's secret seals, and nothing else."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api.readers import readParquet
from penstock.attachment.launch import EnvironmentLaunch
from penstock.errors import AuthenticationError
from penstock.graph import JobGraph
from penstock.link import control
from penstock.link.master import ReadAnswer
from penstock.settings import Settings
from penstock.spark.result_access import pack_plan, unpack_plan

LAUNCH = EnvironmentLaunch("app", bytes(range(32)), "localhost:1", {})
OTHER = EnvironmentLaunch("app", bytes(32), "localhost:1", {})


class _Trap:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._path),)


@pytest.fixture
def graph(tmp_path: Path) -> JobGraph:
    """The plan of a small pipeline."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "rows.parquet")
    rows = readParquet(None, str(tmp_path / "rows.parquet")).keyBy("a", numPartitions=1)
    return rows.plan(Settings(), 4, keep=True).graph


def test_a_sealed_plan_is_the_one_that_was_packed(graph: JobGraph) -> None:
    """The task gets the job's graph and works with the launch that it has itself; the secret is not in the answer."""
    packed = pack_plan(LAUNCH, "j2", graph)
    plan = unpack_plan(LAUNCH, ReadAnswer(job="j2", plan=packed))
    assert (plan.job, plan.launch) == ("j2", LAUNCH)
    assert [vertex.name for vertex in plan.graph.vertices] == [vertex.name for vertex in graph.vertices]
    assert LAUNCH.secret not in packed


def test_nothing_is_unpickled_that_is_not_sealed(tmp_path: Path, graph: JobGraph) -> None:
    """A pickle without a seal, one sealed with another secret, for another job, or changed after its seal."""
    trap = pickle.dumps(_Trap(tmp_path / "sprung"))
    purpose = control.PLAN_PURPOSE.format(job="j2")
    sealed = pack_plan(LAUNCH, "j2", graph)
    forgeries = [
        trap,
        bytes(32) + trap,
        control.seal(OTHER.secret, purpose, trap),
        control.seal(LAUNCH.secret, control.PLAN_PURPOSE.format(job="j1"), trap),
        control.seal(LAUNCH.secret, "something else", trap),
        sealed[:32] + trap,
        b"",
    ]
    for forgery in forgeries:
        with pytest.raises(AuthenticationError, match="plan of j2"):
            unpack_plan(LAUNCH, ReadAnswer(job="j2", plan=forgery))
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(FileNotFoundError):  # the trap does spring where it is unpickled
        pickle.loads(pickle.dumps(_Trap(tmp_path / "none" / "sprung")))  # noqa: S301
