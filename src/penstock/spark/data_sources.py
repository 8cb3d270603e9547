# SPDX-License-Identifier: Apache-2.0
"""Python data sources that a session knows (`spark.dataSource.register`), as classes in the driver's Python.

Spark keeps a class as the pickle that its workers get, and also knows those of installed packages `pyspark_*`. Both
are found under the name that `format` takes. A source travels to our tasks as Spark's does to its own: pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import StructType

from penstock.errors import PlanError
from penstock.graph import parse_ddl
from penstock.spark.types import arrow_schema, struct_type


def registered(spark: Any, name: str) -> type[DataSource] | None:
    """The class that this session knows by a name, if it is one in Python; without a session there is none."""
    if spark is None:
        return None
    manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - there is no other way to ask
    if not manager.dataSourceExists(name):
        return None
    found = manager.lookupDataSource(name)
    if not found.getClass().getName().endswith(".UserDefinedPythonDataSource"):
        return None
    command = found.dataSourceCls().command().mkString(",")
    pickled = bytes(int(number) & 255 for number in command.split(","))
    return CloudPickleSerializer().loads(pickled)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class MadeSource:
    """A data source with its options, as it travels: its name, and the pickle of it and of its rows' types."""

    name: str
    types: StructType
    pickled: bytes

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return arrow_schema(self.types)

    def loaded(self) -> DataSource:
        """The source, in a task."""
        source: DataSource = cloudpickle.loads(self.pickled)
        return source


def made(cls: type[DataSource], options: Mapping[str, str], schema: pa.Schema | None) -> MadeSource:
    """A source to be read, as PySpark makes it: with the given schema, else with its own."""
    source = cls(options=CaseInsensitiveDict(options))
    types: Any = source.schema() if schema is None else struct_type(schema)
    if isinstance(types, str):
        types = struct_type(parse_ddl(types))
    if not isinstance(types, StructType):
        raise PlanError(f"{cls.name()}: schema() gives {types!r}: it gives a StructType, or a text such as 'id long'")
    return MadeSource(cls.name(), types, cloudpickle.dumps(source))


def made_to_write(cls: type[DataSource], options: Mapping[str, str], schema: pa.Schema) -> MadeSource:
    """A source to be written to, whose rows have this schema."""
    source = cls(options=CaseInsensitiveDict(options))
    return MadeSource(cls.name(), struct_type(schema), cloudpickle.dumps(source))
