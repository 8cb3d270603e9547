# SPDX-License-Identifier: Apache-2.0
"""`writeStream.toTable`: a table of files in the session's catalog, into whose folder a query writes.

The table is made as `CREATE TABLE` makes it. After each checkpoint the driver tells Spark that there are new files,
and of a partitioned table that there are new folders, so the session sees the rows. Others see them when they look
anew.

Non-goals: tables of Delta Lake and Iceberg, which have sinks of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.api.streaming.query import QueryHooks
from penstock.api.streaming.sinks import SINKS, Made, SinkRequest
from penstock.errors import PlanError

_FORMATS = ("parquet", "csv", "json")


def into_table(table: str, form: object, request: SinkRequest) -> Made:
    """The sink of a table's files; makes the table where there is none. Raises PlanError for one of another kind."""
    if form not in _FORMATS:
        raise PlanError(
            f"writeStream.toTable writes tables of {', '.join(_FORMATS)}, not of {form!r}: name one of them"
        )
    folder = _folder(request, table, str(form))
    sink, _ = SINKS[str(form)](replace(request, path=folder))
    catalog, is_partitioned = request.spark.catalog, bool(request.partition_by)

    def tell() -> None:
        if is_partitioned:
            catalog.recoverPartitions(table)
        catalog.refreshTable(table)

    return sink, QueryHooks(tell)


def _folder(request: SinkRequest, table: str, form: str) -> str:
    spark = request.spark
    from penstock.spark.types import struct_type

    types = struct_type(request.schema)
    if not spark.catalog.tableExists(table):
        by = f" PARTITIONED BY ({', '.join(map(_quoted, request.partition_by))})" if request.partition_by else ""
        columns = ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in types)
        spark.sql(f"CREATE TABLE {table} ({columns}) USING {form}{by}")
    found = _details(spark, table)
    if found.get("Provider", "").lower() != form or "Location" not in found:
        kind = f"{found.get('Type', 'no table')} of {found.get('Provider', 'nothing')}".lower()
        raise PlanError(f"writeStream.toTable: {table} is a {kind}, and the query writes {form}: name another table")
    there = {column.name: (column.dataType, column.isPartition) for column in spark.catalog.listColumns(table)}
    wanted = {each.name: (each.dataType.simpleString(), each.name in request.partition_by) for each in types}
    if there != wanted:
        raise PlanError(
            f"writeStream.toTable: {table} has the columns {_shown(there)}, and the query gives {_shown(wanted)}"
        )
    return found["Location"]


def _details(spark: Any, table: str) -> dict[str, str]:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    return {row["col_name"]: row["data_type"] for row in rows}


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _shown(columns: dict[str, tuple[str, bool]]) -> str:
    each = (f"{name} {kind}{' (partition)' if by else ''}" for name, (kind, by) in columns.items())
    return ", ".join(each)
