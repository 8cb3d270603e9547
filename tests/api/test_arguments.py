# SPDX-License-Identifier: Apache-2.0
"""Arguments of the public verbs: checked at the call, refused with what to do. Needs no Spark."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.api.functions import CoGroupedDataFrame
from penstock.errors import PlanError, SchemaError, SettingError
from penstock.testing import DEADLINE
from penstock.testing.sources import fromBatches

ROWS = pa.table({"k": ["a", "b"], "v": [1, 2], "m": pa.array([[("x", 1)], []], pa.map_(pa.string(), pa.int64()))})
MEMORY = "penstock.testing.memory_service:MemoryShuffleService"


class Column:
    """Stands for PySpark's Column: anything that is no name."""


def stream() -> penstock.Stream:
    """A small stream."""
    return fromBatches(ROWS)


class WantsModel:
    """Cannot be made by a task."""

    def __init__(self, model: object) -> None:
        self.model = model

    def __call__(self, batches: object) -> object:
        """The same."""
        return batches


def same(batches: Any) -> Any:
    """The identity."""
    return batches


CALLS = {
    "a Column is no name": (lambda s: s.keyBy(Column()), TypeError, "withColumn"),
    "a column that is missing": (lambda s: s.keyBy("x"), SchemaError, "'x' does not exist; the columns are k, v, m"),
    "a map as key": (lambda s: s.keyBy("m"), SchemaError, "'m'.*cannot be a key"),
    "an order by a map": (lambda s: s.sortBy("m"), SchemaError, "sortBy: column 'm' .* has no order: make a plain"),
    "a Column to explode": (lambda s: s.explode(Column()), TypeError, "explode: columns are names, not Column"),
    "no session of queries": (lambda s: penstock.streams(None), TypeError, "streams takes a SparkSession"),
    "a reader in small letters": (
        lambda s: penstock.readparquet("x"),
        AttributeError,
        "has no attribute 'readparquet': did you mean readParquet\\?",
    ),
    "Spark's reader": (lambda s: penstock.read, AttributeError, "did you mean readCsv or readDelta or"),
    "an argument with a typo": (
        lambda s: s.keyBy("k", numPartition=3),
        TypeError,
        "keyBy has no argument 'numPartition': did you mean 'numPartitions'\\?",
    ),
    "an argument in small letters": (
        lambda s: penstock.readCsv(None, "x", num_partitions=3),
        TypeError,
        "readCsv has no argument 'num_partitions': did you mean 'numPartitions'\\?",
    ),
    "an argument of something else": (
        lambda s: s.rebalance(3, cheese=True),
        TypeError,
        "rebalance has no argument 'cheese': its arguments are numPartitions, mode, service",
    ),
    "a verb with state": (
        lambda s: s.keyBy("k").applyInPandasWithState,
        AttributeError,
        r"write \.groupBy\('k'\)\.transformWithStateInPandas\(processor, schema\)",
    ),
    "state without keys": (
        lambda s: s.transformWithState,
        AttributeError,
        r"key the stream first: \.groupBy\('k'\)\.transformWithState\(processor, schema\)",
    ),
    "a processor that is none": (
        lambda s: s.keyBy("k").transformWithState(len, "a int"),
        TypeError,
        "takes an object of a class derived from pyspark.sql.streaming.StatefulProcessor, with init, handleInputRows",
    ),
    "a processor of rows for batches": (
        lambda s: s.keyBy("k").transformWithStateInArrow(Column, "a int"),
        TypeError,
        r"transformWithStateInArrow takes an object of a class derived from penstock\.BatchProcessor",
    ),
    "a processor in complete mode": (
        lambda s: s.keyBy("k").transformWithStateInArrow(penstock.BatchProcessor(), "a int", "complete"),
        PlanError,
        "outputMode is 'append' or 'update', not 'complete'",
    ),
    "an unknown time mode": (
        lambda s: s.keyBy("k").transformWithStateInArrow(penstock.BatchProcessor(), "a int", "update", "Watermark"),
        PlanError,
        "timeMode is 'None', 'ProcessingTime', 'EventTime', not 'Watermark'",
    ),
    "timers of event time without a watermark": (
        lambda _: (
            penstock.readStream(None)
            .format("rate")
            .load()
            .keyBy("value")
            .transformWithStateInArrow(penstock.BatchProcessor(), "a int", "update", "EventTime")
        ),
        PlanError,
        "timers of timeMode 'EventTime' fire by a watermark, and there is none",
    ),
    "zero partitions": (lambda s: s.keyBy("k", numPartitions=0), PlanError, "at least 1, not 0"),
    "zero partitions to spread over": (lambda s: s.rebalance(0), PlanError, "rebalance: numPartitions"),
    "a million partitions": (lambda s: s.rebalance(1_000_000), PlanError, "at most 32,768, not 1,000,000"),
    "partitions that are no number": (lambda s: s.random("4"), TypeError, "whole number"),
    "an unknown mode": (lambda s: s.rebalance(mode="fast"), SettingError, "unknown mode 'fast'"),
    "an unknown service": (lambda s: s.keyBy("k", service="nope"), SettingError, "unknown shuffle service 'nope'"),
    "a function that is none": (lambda s: s.mapInArrow("f", "a int"), TypeError, "must be callable"),
    "a class that cannot be called": (
        lambda s: s.mapInArrow(Column, "a int"),
        TypeError,
        r"mapInArrow: the class Column has no __call__: give one with __call__\(self, batches\)",
    ),
    "a class that wants arguments": (
        lambda s: s.mapInArrow(WantsModel, "a int"),
        TypeError,
        r"mapInArrow: the class WantsModel is made without arguments: missing a required argument: 'model'",
    ),
    "a function without an argument": (
        lambda s: s.mapInArrow(lambda: None, "a int"),
        TypeError,
        r"mapInArrow: the function is called with one argument, the iterator; <lambda>: too many positional",
    ),
    "a pandas function of two": (
        lambda s: s.mapInPandas(lambda key, frames: frames, "a int"),
        TypeError,
        r"mapInPandas: .*missing a required argument: 'frames'",
    ),
    "a pandas function that is none": (lambda s: s.mapInPandas(3, "a int"), TypeError, "must be callable"),
    "a schema that is none": (lambda s: s.mapInArrow(same, 5), TypeError, "DDL string"),
    "a schema with a typo": (lambda s: s.mapInArrow(same, "a itn"), SchemaError, "unknown type 'itn'"),
    "no aggregation": (lambda s: s.keyBy("k").agg(), PlanError, "at least one"),
    "an aggregation that is no pair": (lambda s: s.keyBy("k").agg(n="v"), PlanError, "must be a pair"),
    "an aggregation of a missing column": (lambda s: s.keyBy("k").agg(n=("x", "sum")), SchemaError, "no column 'x'"),
    "an unknown aggregation": (lambda s: s.keyBy("k").agg(n=("v", "mode")), PlanError, "'mode'"),
    "several partitions of one group": (lambda s: s.keyBy(numPartitions=3), PlanError, "one group"),
    "a custom partitioner that is none": (lambda s: s.partitionCustom(1, 2), TypeError, "function"),
    "a custom partitioner without a number": (lambda s: s.partitionCustom(same, None), PlanError, "numPartitions"),
    "a union with something else": (lambda s: s.union(ROWS), TypeError, "union takes streams"),
    "a union with itself": (lambda s: s.union(s), PlanError, "same stream"),
    "a union of other columns": (
        lambda s: s.union(fromBatches(pa.table({"k": [1]}))),
        SchemaError,
        "names and types.*k string.*k int64",
    ),
    "a group function of three": (
        lambda s: s.keyBy("k").applyInArrow(lambda a, b, c: a, "a int"),
        PlanError,
        "takes 3",
    ),
    "toDF without Spark": (lambda s: s.toDF(), PlanError, "run_local"),
    "run without Spark": (lambda s: s.run(), PlanError, "run_local"),
    "a DataFrame that is none": (
        lambda s: penstock.fromDataFrame(ROWS),
        TypeError,
        "not pyarrow's Table: write fromDataFrame",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused_at_the_call(name: str) -> None:
    """Each wrong argument is refused where it is written, by an error that names it."""
    call, error, message = CALLS[name]
    with pytest.raises(error, match=message):
        call(stream())


def test_streams_are_immutable() -> None:
    """Verbs give new streams; the old ones stay what they were."""
    before = stream()
    after = before.mapInArrow(same, "a int")
    assert (before.columns, after.columns) == (["k", "v", "m"], ["a"])
    assert after.schema == pa.schema([("a", pa.int32())])


def test_good_arguments_in_all_spellings() -> None:
    """Columns as arguments or as a list, a service by its path, a pyarrow schema, the alias groupBy."""
    source = stream()
    assert source.groupBy(["k", "v"], service=MEMORY, mode="pipelined").columns == ["k", "v", "m"]
    assert source.mapInArrow(same, pa.schema([("z", pa.int8())])).columns == ["z"]
    assert source.keyBy("k").agg(n=("v", "sum"), c=("*", "count")).schema == pa.schema(
        [("k", pa.string()), ("n", pa.int64()), pa.field("c", pa.int64(), nullable=False)]
    )


FUNCTIONS = [
    name for name in penstock.__all__ if inspect.isfunction(getattr(penstock, name)) and name != "preloading"
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_names_the_keyword_that_it_does_not_have(name: str) -> None:
    """Also those that need a session: the keyword is looked at first."""
    with pytest.raises(TypeError, match=f"{name} has no argument 'nonsense': its arguments are "):
        getattr(penstock, name)(nonsense=1)


def test_windows_and_pairs_name_the_keyword_that_they_do_not_have() -> None:
    """As streams do."""
    with pytest.raises(TypeError, match="window has no argument 'slideduration': did you mean 'slideDuration'\\?"):
        penstock.window("t", "1 minute", slideduration="1 second")
    with pytest.raises(TypeError, match="applyInArrow has no argument 'shema': did you mean 'schema'\\?"):
        CoGroupedDataFrame.applyInArrow(None, len, shema="a long")


def test_import_is_light() -> None:
    """Importing penstock and using streams imports neither PySpark nor pandas."""
    code = (
        "import sys, penstock; penstock.Stream; "
        "from penstock.testing.local_runner import run_local; "
        "print([name for name in ('pyspark', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout.strip() == "[]", done.stderr


def test_public_names() -> None:
    """Each resolves, and is told by `dir`; the reference lists them (`tests/house/test_site.py`)."""
    assert all(callable(getattr(penstock, name)) and name in dir(penstock) for name in penstock.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = penstock.nothing  # type: ignore[attr-defined]
