# SPDX-License-Identifier: Apache-2.0
"""The lazy end of a pipeline: a Python data source whose partitions are a result's.

Spark calls `partitions()` in a planning process when an action is planned, not before: that opens the result,
which runs the job if it has not run. `read()` runs on executors, attaches to the host's environment and reads one
re-readable partition: any of them, in any order, any number of times. Spark does not plan the same DataFrame
twice, so a second action reads what is there; what is not there any more is made again (`result_access`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.shuffle import ShuffleDescriptor, control
from penstock.shuffle.errors import SettingError
from penstock.spark.result_access import ResultAccess, ResultPlace

NAME = "penstock"
TICKET = "ticket"


class ResultPartition(InputPartition):  # type: ignore[misc]  # PySpark is not followed by mypy here
    """One partition of a result: which one, where it was when it was planned, how to reach an environment."""

    def __init__(self, place: ResultPlace) -> None:
        super().__init__(place.index)
        self.place = place


class PenstockDataSource(DataSource):  # type: ignore[misc]  # as above
    """Format `penstock`: made by `Stream.toDF`, not meant to be used by hand."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> StructType:
        """Refuse: the schema always comes with the DataFrame."""
        raise SettingError(f"format {NAME!r} is made by Stream.toDF() and cannot be loaded by hand")

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the result that the ticket names."""
        path = self.options.get(TICKET)
        if not path:
            raise SettingError(f"format {NAME!r} is made by Stream.toDF() and cannot be loaded by hand")
        return ResultReader(str(path), schema)


class ResultReader(DataSourceReader):  # type: ignore[misc]  # as above
    """Plans in the planning process, reads on executors."""

    def __init__(self, path: str, schema: StructType) -> None:
        self._path = path
        self._spark_schema = schema

    def partitions(self) -> list[InputPartition]:
        """The result's partitions in order; runs the job and waits for it where it has not run."""
        from penstock.job.client import MasterClient
        from penstock.job.sessions import PLANNER
        from penstock.spark.python_worker import settle_in
        from penstock.spark.result_files import read_ticket

        settle_in()
        ticket = read_ticket(self._path)
        launch = ticket.launch
        with MasterClient(launch.master, launch.secret, PLANNER, f"planner-{os.getpid()}") as client:
            # No deadline here: the job's own deadlines end it, and keepalive sees a dead driver.
            answer = client.call(control.OPEN_RESULT, {"result": ticket.result}, None)
        descriptors = [ShuffleDescriptor.from_wire(tuple(wire)) for wire in answer["partitions"]]
        return [
            ResultPartition(ResultPlace(ticket.result, index, descriptor, ticket.schema, launch))
            for index, descriptor in enumerate(descriptors)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in Spark's Arrow types."""
        from penstock.spark.types import arrow_schema, spark_batches

        if not isinstance(partition, ResultPartition):
            return iter(())
        return spark_batches(read_result(partition), arrow_schema(self._spark_schema))


def read_result(partition: ResultPartition) -> Iterator[pa.RecordBatch]:
    """The batches of a result partition, read through the environment of this host."""
    return ResultAccess(partition.place).batches()
