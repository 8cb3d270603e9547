# SPDX-License-Identifier: Apache-2.0
"""The Python stages of an unchanged PySpark program, as operators: PySpark's own worker code calls the function.

The function travels as PySpark has pickled it, and `pyspark.worker.read_udfs` makes of it what Spark's worker runs:
so columns are found, types checked, frames made and errors worded by PySpark itself. What the JVM does around it is
done here: batches of `maxRecordsPerBatch` rows, instants in the session's zone, keys told apart from values by their
places, and results read by their places under the declared types. Where the JVM would read a result wrongly, or
fail in its own words (a type that is not the declared one, a null where none may be), there is an error of PySpark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.operators.functions import regrouped
from penstock.operators.groups import GroupCollector, Side
from penstock.operators.jvm_batches import (
    Batches,
    StageInput,
    declared_rows,
    in_struct,
    no_rows,
    plain_name,
    wrong_columns,
)
from penstock.operators.loans import lending
from penstock.operators.memory import task_memory
from penstock.spark.logical_plans import SentFunction

_TIMEZONE = "spark.sql.session.timeZone"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_USUAL_BATCH_ROWS = "10000"
_SEPARATOR, _ARROW = "\x01", " -> "


@dataclass(frozen=True, slots=True)
class WorkerConf:
    """What of the session's conf Spark tells its Python workers, the session's zone, the most rows of a batch."""

    values: tuple[tuple[str, str], ...]
    timezone: str
    batch_rows: int

    @classmethod
    def of(cls, spark: Any, conf: Mapping[str, str]) -> WorkerConf:
        """Those of a session with this conf: what Spark itself would send, for some defaults are other ones there."""
        runner = spark._jvm.org.apache.spark.sql.execution.python.ArrowPythonRunner  # noqa: SLF001 - PySpark has no public way
        sent = runner.getPythonRunnerConfMap(spark._jsparkSession.sessionState().conf())  # noqa: SLF001
        pairs = (pair.partition(_ARROW) for pair in sent.mkString(_SEPARATOR).split(_SEPARATOR))
        timezone = str(spark.conf.get(_TIMEZONE))
        values = {key: value for key, arrow, value in pairs if arrow} | {_TIMEZONE: timezone}
        return cls(tuple(sorted(values.items())), timezone, int(conf.get(_BATCH_ROWS, _USUAL_BATCH_ROWS)))


def refused_by(conf: Mapping[str, str]) -> str:
    """Why a session with this conf keeps its functions in Spark's own tasks; empty if it does not."""
    if conf.get("spark.sql.pyspark.udf.profiler"):
        return "spark.sql.pyspark.udf.profiler measures functions in Spark's tasks"
    if conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false").lower() == "true":
        return "spark.sql.execution.arrow.useLargeVarTypes gives functions other types"
    return ""


@dataclass(frozen=True, slots=True)
class StageFunction:
    """A user's function with what Spark tells its worker: settings, and the places of arguments."""

    sent: SentFunction
    conf: tuple[tuple[str, str], ...]
    arguments: tuple[int, ...]
    schema: pa.Schema
    verb: str

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"{self.verb}({self.sent.name})"

    def opened(self) -> Callable[[int, Iterator[Any]], Batches]:
        """A copy of the function for one task, as Spark's worker calls it."""
        from pyspark import worker
        from pyspark.worker_message import UDFInfo
        from pyspark.worker_util import pickleSer

        info = UDFInfo(udfs=[memoryview(self.sent.command)], args=list(self.arguments), kwargs={}, result_id=-1)
        conf = worker.RunnerConf(dict(self.conf))
        return worker.read_udfs(pickleSer, [info], self.sent.eval_type, conf, worker.EvalConf({}))[0]  # type: ignore[no-any-return]

    def results(self, given: Iterator[Any]) -> Batches:
        """The rows that it gives, under the declared schema."""
        for batch in self.opened()(0, given):
            yield self._declared(batch.column(0))

    def _declared(self, rows: pa.StructArray) -> pa.RecordBatch:
        if not len(rows):
            return no_rows(self.schema)
        columns = rows.flatten()
        if len(columns) < len(self.schema):
            raise _mismatch("RESULT_COLUMN_SCHEMA_MISMATCH", expected=len(self.schema), actual=len(columns))
        if wrong := wrong_columns(columns, self.schema):
            raise _mismatch("RESULT_COLUMN_TYPES_MISMATCH", mismatch=", ".join(wrong))
        return declared_rows(columns, self.schema, self.name)


@dataclass(frozen=True, slots=True)
class PythonMap:
    """`mapInArrow` and `mapInPandas`."""

    function: StageFunction
    input: StageInput

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return self.function.name

    def apply(self, batches: Batches) -> Batches:
        """The rows that the function yields, in memory of their own."""
        given = self.input.cut(self.input.batches(batches))
        yield from lending(None, self.function.results(map(in_struct, given)))


@dataclass(frozen=True, slots=True)
class PythonGroups:
    """`applyInArrow` and `applyInPandas` over the groups of a task."""

    function: StageFunction
    input: StageInput
    keys: tuple[str, ...]
    in_structs: bool
    """PySpark takes the groups of functions over Arrow as structs, and those over frames as columns."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"{self.function.name} by {_shown(self.keys)}"

    def apply(self, batches: Batches) -> Batches:
        """The rows that the function gives for each group."""
        collector = GroupCollector((Side(self.input.schema, self.keys),), task_memory())
        for batch in batches:
            collector.add(batch)
        groups = (self._group(slices) for _, (slices,) in collector.groups())
        yield from regrouped(self.function.results(groups), None)

    def _group(self, slices: Sequence[pa.RecordBatch]) -> Batches:
        rows = self.input.cut(self.input.batches(iter(slices)))
        return map(in_struct, rows) if self.in_structs else rows


@dataclass(frozen=True, slots=True)
class PythonCoGroups:
    """Both forms of `cogroup`: each key with the rows of both sides."""

    function: StageFunction
    inputs: tuple[StageInput, StageInput]
    keys: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"cogroup {self.function.name} by {_shown(self.keys[0])}"

    def apply(self, inputs: Sequence[Batches]) -> Batches:
        """The rows that the function gives for each key that either side has."""
        sides = tuple(Side(side.schema, keys) for side, keys in zip(self.inputs, self.keys, strict=True))
        collector = GroupCollector(sides, task_memory())
        for side, batches in enumerate(inputs):
            for batch in batches:
                collector.add(batch, side)
        groups = (
            tuple(self._side(side, slices) for side, slices in zip(self.inputs, found, strict=True))
            for _, found in collector.groups()
        )
        yield from regrouped(self.function.results(groups), None)

    @staticmethod
    def _side(side: StageInput, slices: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        found = list(side.cut(side.batches(iter(slices))))
        return found or [no_rows(side.shown)]


def _shown(keys: Sequence[str]) -> str:
    return ", ".join(map(plain_name, keys)) or "nothing"


def _mismatch(condition: str, **words: object) -> Exception:
    from pyspark.errors import PySparkRuntimeError

    said = {key: str(word) for key, word in words.items()}
    error: Exception = PySparkRuntimeError(errorClass=condition, messageParameters=said)
    return error
