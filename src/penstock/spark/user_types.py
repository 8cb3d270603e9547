# SPDX-License-Identifier: Apache-2.0
"""The types in the signatures of the public verbs, by the names that the reference shows.

Type checkers read it, and nothing imports it at run time: the verbs are imported without Spark, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.resource import ResourceProfile
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from penstock.operators.windows import WindowKey

__all__ = ["Column", "DataFrame", "Expression", "Key", "ResourceProfile", "Row", "Schema", "SparkSession"]

Schema: TypeAlias = str | StructType | pa.Schema
"""The schema of rows: a DDL string such as `id long, name string`, one of PySpark's, or one of PyArrow's."""
Expression: TypeAlias = str | Column | pc.Expression
"""A column of rows: SQL (a name is SQL, too), a Column of PySpark's, or an expression of `pyarrow.compute`."""
Key: TypeAlias = str | Column | WindowKey | Sequence[str | Column | WindowKey]
"""A column's name, a Column of PySpark's, or a window of time; a list of them stands for several."""
