# SPDX-License-Identifier: Apache-2.0
"""The data source's planning half against a real JobMaster over gRPC, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from penstock.graph.job_graph import JobGraph, JobVertex
from penstock.job.launcher import LaunchRequest, Submission
from penstock.job.master import JobMaster, MasterIdentity
from penstock.services.local.launch import EnvironmentLaunch
from penstock.shuffle import Settings
from penstock.shuffle.errors import JobError, SettingError
from penstock.spark.datasource import TICKET, PenstockDataSource, ResultPartition, ResultReader, read_result
from penstock.spark.result_files import ResultFolder, ResultTicket

SECRET = b"s" * 32
SCHEMA = pa.schema([("id", pa.int64())])
SPARK_SCHEMA = StructType([StructField("id", LongType())])


class ReturningLauncher:
    """Every Spark job returns at once, with this error or well: a DataFrame without rows."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.launched = 0

    def launch(self, request: LaunchRequest) -> None:
        """Return at once."""
        self.launched += 1
        for vertex in request.submission.graph.vertices:
            request.returned(vertex.id, self.error, False)

    def cancel(self, job: str) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is open."""


class Rig:
    """A JobMaster with one lazy result of two partitions."""

    def __init__(self) -> None:
        self.launcher = ReturningLauncher()
        self.master = JobMaster(MasterIdentity("app", SECRET), self.launcher)
        self.launch = EnvironmentLaunch("app", SECRET, self.master.start(), Settings().to_conf())
        self.folder = ResultFolder()
        vertex = JobVertex(0, "frame", 2, SCHEMA, reads_dataframe=True)
        graph = JobGraph("frame", (vertex,), (), (0,))
        self.master.add_result("r1", lambda: Submission(self.master.new_job(), graph, Settings(), 4))
        self.path = self.folder.write(ResultTicket("r1", self.launch, SCHEMA))


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A fresh rig."""
    rig = Rig()
    yield rig
    rig.master.close()
    rig.folder.close()


def test_partitions_open_the_result_once(rig: Rig) -> None:
    """Making source and reader runs nothing; partitions() runs the job, and again it does not."""
    source = PenstockDataSource({TICKET: rig.path})
    reader = source.reader(SPARK_SCHEMA)
    pickle.loads(pickle.dumps(reader))  # noqa: S301 - as Spark does it
    assert rig.launcher.launched == 0
    partitions = reader.partitions()
    assert [partition.value for partition in partitions] == [0, 1]
    assert len(reader.partitions()) == 2
    assert rig.launcher.launched == 1


def test_empty_partitions_are_read_without_a_host(rig: Rig) -> None:
    """A partition that never had a producer has no rows, and nobody is asked for them."""
    for partition in ResultReader(rig.path, SPARK_SCHEMA).partitions():
        travelled = pickle.loads(pickle.dumps(partition))  # noqa: S301 - as Spark does it
        assert isinstance(travelled, ResultPartition)
        assert list(read_result(travelled)) == []


def test_planning_error_carries_the_jobmasters_words(rig: Rig) -> None:
    """The job's error comes out of partitions(); the next call runs the job anew."""
    rig.launcher.error = "Traceback: user_function: boom"
    reader = ResultReader(rig.path, SPARK_SCHEMA)
    with pytest.raises(JobError, match="user_function: boom"):
        reader.partitions()
    rig.launcher.error = None
    assert len(reader.partitions()) == 2
    assert rig.launcher.launched == 2


def test_format_is_not_for_hands(rig: Rig) -> None:
    """Without a ticket, and without a schema, it says where it comes from."""
    with pytest.raises(SettingError, match="toDF"):
        PenstockDataSource({}).reader(SPARK_SCHEMA)
    with pytest.raises(SettingError, match="toDF"):
        PenstockDataSource({}).schema()
