# SPDX-License-Identifier: Apache-2.0
"""The lazy end of a pipeline: a scan in Spark's plan that asks this Python for the partitions of a result.

Spark takes a scan and its batch as Java interfaces, and py4j lets Python objects fill these. So an action calls
`planInputPartitions` here, in the driver's own Python: that opens the result, which runs the job if it has not run.
Nothing is registered with a session and no process is started for planning. The partitions are Spark's own of a
Python data source; `read_rows` runs on executors and reads one of them: any, in any order, any number of times.

A job that fails is raised by a read task, so that an action raises what PySpark raises for a function of the user's:
`PythonException`. Spark would keep that planning failed, and never plan that action again (`failed_planning`).
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import Accumulator, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.udf import _wrap_function

from penstock.attachment.launch import EnvironmentLaunch
from penstock.errors import PartitionError, PenstockError
from penstock.job.core.failure import TRACEBACK
from penstock.shuffle import ShuffleDescriptor
from penstock.spark.callback_threads import called_by_java
from penstock.spark.failed_planning import FailedPlanning
from penstock.spark.java_classes import JavaClasses
from penstock.spark.read_times import ReadTimes
from penstock.spark.result_access import PlannedPartition, ResultAccess
from penstock.spark.results_in_use import ResultInUse
from penstock.spark.types import arrow_schema, spark_batches

NAME = "penstock"
"""The name of our table in Spark's plans."""
_V2 = "org.apache.spark.sql.execution.datasources.v2"
_READ = "org.apache.spark.sql.connector.read"
_HIDE = "SPARK_HIDE_TRACEBACK"
"""With this in a worker's environment PySpark prints an error without frames."""
_METRIC = "org.apache.spark.sql.connector.metric"
_NEWER = {"4.1.": 0, "4.2.": 1}
"""So many of the arguments of a scan that newer versions of Spark have added are there in these."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class LazyResult:
    """A result that is made when it is opened: its name, what plans show, its rows' schema, its opening.

    `types` is the schema for Spark; its columns may have other names. It stays as long as `in_use` is referred to.
    """

    in_use: ResultInUse = field(repr=False)
    title: str
    schema: pa.Schema
    types: StructType
    launch: EnvironmentLaunch = field(repr=False)
    open: Callable[[ResultInUse], Sequence[ShuffleDescriptor]] = field(repr=False)
    times: ReadTimes | None = field(default=None, repr=False)
    """Is told how long it is read."""

    @property
    def name(self) -> str:
        """The JobMaster's name for it."""
        return self.in_use.name


def result_frame(spark: SparkSession, result: LazyResult) -> DataFrame:
    """An ordinary DataFrame over a result. Nothing runs, and no process starts."""
    java = JavaClasses(spark)
    schema = spark._jsparkSession.parseDataType(result.types.json())  # noqa: SLF001 - as PySpark does
    source = java.new(f"{_V2}.python.PythonDataSourceV2")
    table = java.new(f"{_V2}.python.PythonTable", source, NAME, schema)
    relation = java.named(f"{_V2}.DataSourceV2Relation").create(table, java.none, java.none)
    scan = ResultScan(java, result, schema)
    parts = [relation, scan, relation.output(), java.none, java.none]
    newer = [java.sequence([]), False][: _NEWER.get(spark.version[:4], 2)]
    plan = java.new(f"{_V2}.DataSourceV2ScanRelation", *parts, *newer)
    rows = java.named("org.apache.spark.sql.classic.Dataset").ofRows(spark._jsparkSession, plan)  # noqa: SLF001
    # Under names of its own, because Spark tells the two sides of a self-join apart by renaming, and a scan it can't.
    return DataFrame(rows, spark).toDF(*result.types.names) if result.types.names else DataFrame(rows, spark)


class ResultScan:
    """Spark's `Scan` and `Batch` of one result; py4j calls these methods on a thread of its own."""

    class Java:
        """The interfaces, where py4j looks for them."""

        implements: ClassVar[list[str]] = [f"{_READ}.Scan", f"{_READ}.Batch"]

    def __init__(self, java: JavaClasses, result: LazyResult, schema: Any) -> None:
        self._java = java
        self._result = result
        self._schema = schema
        self.threads = java.threads

    @called_by_java
    def readSchema(self) -> Any:
        """The rows' Spark schema."""
        return self._schema

    @called_by_java
    def description(self) -> str:
        """The text that `explain()` shows."""
        return self._result.title

    @called_by_java
    def toBatch(self) -> ResultScan:
        """The scan is its own batch."""
        return self

    @called_by_java
    def columnarSupportMode(self) -> Any:
        """Spark's factory gives rows; said here so that Spark need not plan the partitions to find out."""
        return self._java.named(f"{_READ}.Scan$ColumnarSupportMode").valueOf("UNSUPPORTED")

    @called_by_java
    def supportedCustomMetrics(self) -> Any:
        """There are no custom metrics."""
        return self._java.array(f"{_METRIC}.CustomMetric", [])

    @called_by_java
    def reportDriverMetrics(self) -> Any:
        """There are no metrics of the driver."""
        return self._java.array(f"{_METRIC}.CustomTaskMetric", [])

    @called_by_java
    def planInputPartitions(self) -> Any:
        """The result's partitions in order; runs the job and waits for it where it has not run."""
        try:
            return self._partitions(self._result.open(self._result.in_use))
        except PenstockError:
            result = self._result
            failed = ScannedPartition(FailedPlanning(result.name, result.schema, result.launch), self._target)
            return self._packed([failed])
        except Exception as error:  # noqa: BLE001 - the JVM has to get whatever it is
            raise self._java.python_exception(failure_text(error)) from None

    @called_by_java
    def createReaderFactory(self) -> Any:
        """Spark's own factory for partitions of a Python data source, with our function."""
        function = bytearray(cloudpickle.dumps((read_rows, self._result.types)))
        wrapped = _wrap_function(self._java.spark.sparkContext, read_rows)
        source = self._java.new(f"{_V2}.python.UserDefinedPythonDataSource", wrapped)
        factory = f"{_V2}.python.PythonPartitionReaderFactory"
        made = self._java.new(factory, source, function, self._schema, self._java.none, self._java.none)
        self._result.in_use.also_by(made)  # an RDD holds this one, and not the scan
        return made

    @called_by_java
    def toString(self) -> str:
        """The result's name, by which Java tells scans apart."""
        return f"{NAME} {self._result.launch.application} {self._result.name}"

    @called_by_java
    def hashCode(self) -> int:
        """As `equals` needs it."""
        return hash(self.toString()) % (1 << 31)

    @called_by_java
    def equals(self, other: Any) -> bool:
        """Tell whether it is a scan of the same result."""
        return other is not None and str(other.toString()) == self.toString()

    @property
    def _target(self) -> pa.Schema:
        return arrow_schema(self._result.types)

    def _partitions(self, descriptors: Sequence[ShuffleDescriptor]) -> Any:
        result = self._result
        places = [
            PlannedPartition(result.name, index, descriptor, result.schema, result.launch)
            for index, descriptor in enumerate(descriptors)
        ]
        times = result.times
        if times is not None and descriptors:
            times.opened(descriptors[0].partition.dataset.job)
        told = None if times is None else times.accumulator
        return self._packed([ScannedPartition(place, self._target, told) for place in places])

    def _packed(self, parts: list[ScannedPartition]) -> Any:
        kind = f"{_V2}.python.PythonInputPartition"
        made = [self._java.new(kind, index, bytearray(pickle.dumps(part))) for index, part in enumerate(parts)]
        return self._java.array(f"{_READ}.InputPartition", made)


@dataclass(frozen=True, slots=True)
class ScannedPartition:
    """The input of a read task: the partition's place or that there is none, and the schema of the rows for Spark."""

    source: PlannedPartition | FailedPlanning
    target: pa.Schema
    told: Accumulator[Any] | None = None
    """Is told when its rows were read."""

    def rows(self) -> Batches:
        """The rows, in Spark's Arrow types."""
        source = self.source
        batches = source.batches() if isinstance(source, FailedPlanning) else self._timed(source)
        return spark_batches(batches, self.target)

    def _timed(self, source: PlannedPartition) -> Batches:
        yield from ResultAccess(source).batches()
        if self.told is not None:
            self.told.add({source.descriptor.partition.dataset.job: time.time()})


def read_rows(batches: Batches) -> Batches:
    """The code of a read task: its input is the pickled partition."""
    (packed,) = [batch.column(0)[0].as_py() for batch in batches]
    partition = pickle.loads(packed)  # noqa: S301 - from the driver, as this very function
    if isinstance(partition, ScannedPartition):
        try:
            yield from partition.rows()
        except PenstockError as error:
            os.environ[_HIDE] = "1"  # this process ends with its task's error
            raise worded(failure_text(error)) from None


def worded(text: str) -> Exception:
    """An exception that PySpark prints as just this text, where it leaves the frames out: those are ours alone.

    Of such an exception it prints the type's name, so that is the text; a name holds all characters but these two.
    """
    name = text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
    kind: type[Exception] = type(name, (Exception,), {"__module__": "builtins"})
    return kind()


def failure_text(error: BaseException) -> str:
    """The text for the user: the traceback of his function if there is one, and nothing before it.

    A result that was lost and could not be made again says that first.
    """
    text = str(error).strip() or type(error).__name__
    lead, header, trace = text.partition(TRACEBACK)
    if not header:
        return f"{type(error).__name__}: {text}"
    return f"{lead if isinstance(error, PartitionError) else ''}{header}{trace}".strip()
