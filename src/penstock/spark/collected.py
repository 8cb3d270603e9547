# SPDX-License-Identifier: Apache-2.0
"""The rows of a result that lies on the driver's own host, as PySpark gives them.

The driver reads such a result as a task would, through the environment of its host. Spark is not asked: it would plan
a scan, run a job of Python tasks and hand each row through the JVM, which takes longer than a small job. PySpark's
own conversion turns the Arrow batches into rows, by the session's settings.

Limit: only columns of plain types, nested ones among them; where there are others, the caller reads a DataFrame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as t
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.types import IN_UTC, conform_batch

_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
_PLAIN = (
    t.BinaryType,
    t.BooleanType,
    t.ByteType,
    t.DateType,
    t.DecimalType,
    t.DoubleType,
    t.FloatType,
    t.IntegerType,
    t.LongType,
    t.ShortType,
    t.TimestampNTZType,
    t.TimestampType,
)


def is_plain(kind: t.DataType) -> bool:
    """Tell whether PySpark's conversion from Arrow gives values of this type as its DataFrames do."""
    if isinstance(kind, t.StructType):
        names = kind.names
        return bool(names) and len(set(names)) == len(names) and all(is_plain(field.dataType) for field in kind)
    if isinstance(kind, t.ArrayType):
        return is_plain(kind.elementType)
    if isinstance(kind, t.MapType):
        return is_plain(kind.keyType) and is_plain(kind.valueType)
    return kind == t.StringType() if isinstance(kind, t.StringType) else isinstance(kind, _PLAIN)


@dataclass(frozen=True, slots=True)
class CollectedRows:
    """The rows of a result: their types, and batches that may have other Arrow types of the same meaning."""

    spark: SparkSession
    types: t.StructType
    batches: list[pa.RecordBatch]

    def toArrow(self) -> pa.Table:
        """As a DataFrame's."""
        target = to_arrow_schema(
            self.types,
            error_on_duplicated_field_names_in_struct=True,
            prefers_large_types=self.spark.conf.get(_LARGE) == "true",
            **IN_UTC,
        )
        return pa.Table.from_batches([conform_batch(batch, target) for batch in self.batches], target)

    def collect(self) -> list[Row]:
        """As a DataFrame's."""
        found: list[Row] = ArrowTableToRowsConversion.convert(self.toArrow(), self.types)
        return found

    def take(self, num: int) -> list[Row]:
        """As a DataFrame's."""
        return self.collect()[:num]

    def toPandas(self) -> Any:
        """As a DataFrame's, which is asked for it: all that it needs of one is the schema and the rows."""
        frame: Any = object.__new__(DataFrame)
        frame.__dict__.update(_session=self.spark, schema=self.types, collect=self.collect)
        frame._collect_as_arrow = lambda **_: self.toArrow().to_batches()  # noqa: SLF001 - see above
        return frame.toPandas()
