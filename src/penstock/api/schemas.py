# SPDX-License-Identifier: Apache-2.0
"""Arguments of the public verbs: schemas, columns, counts, functions. Everything is checked at the call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from penstock.errors import PlanError, SettingError
from penstock.graph import Resources, parse_ddl, plain_schema
from penstock.operators.columns import only_column
from penstock.shuffle import load_service, mode_to_kind
from penstock.shuffle.kinds import AUTO

MOST_PARTITIONS = 32_768
"""Flink's limit of a parallelism, too. Far more were planned for minutes, and could never have run."""
_QUOTED = re.compile(r"`(?:[^`]|``)+`")
"""A name as Spark's own verbs want it where it has dots: those who write it so here are understood."""


def schema_argument(schema: object, verb: str) -> pa.Schema:
    """The Arrow schema of a DDL string, a StructType or an Arrow schema, in Spark's layouts of its types.

    So functions may return rows in another layout than the next one gets, and streams of one type have one.
    """
    if isinstance(schema, str):
        with _said_by(verb):
            return parse_ddl(schema)
    if isinstance(schema, pa.Schema):
        return plain_schema(schema)
    if hasattr(schema, "fields") and hasattr(schema, "jsonValue"):
        from penstock.spark.types import arrow_schema

        return cast("pa.Schema", arrow_schema(schema))
    raise TypeError(
        f"{verb}: the schema must be a DDL string such as 'id long, name string', a StructType or a "
        f"pyarrow.Schema, not {type(schema).__name__}"
    )


def function_argument(function: object, verb: str) -> Callable[..., Any]:
    """The function, or TypeError."""
    if not callable(function):
        raise TypeError(
            f"{verb}: the function must be callable, not {type(function).__name__}: give the function itself, "
            "without quotes and without calling it"
        )
    return function


def iterator_function_argument(function: object, verb: str) -> Callable[..., Any]:
    """The function over an iterator, or the class whose objects are called so; TypeError for anything else."""
    given = function_argument(function, verb)
    if isinstance(given, type) and not any("__call__" in vars(each) for each in given.__mro__):
        raise TypeError(
            f"{verb}: the class {given.__name__} has no __call__: give one with __call__(self, batches), made once "
            "for each task, or a function"
        )
    if isinstance(given, type):
        _fits(given, (), f"{verb}: the class {given.__name__} is made without arguments")
    else:
        name = getattr(given, "__name__", type(given).__name__)
        _fits(given, (None,), f"{verb}: the function is called with one argument, the iterator; {name}")
    return given


def _fits(function: Callable[..., object], arguments: tuple[object, ...], problem: str) -> None:
    """Raise TypeError where a function can't take these arguments; of some that are no Python it is not known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{problem}: {error}: write it so, or bind the others with functools.partial") from None


def column_arguments(columns: Sequence[object], schema: pa.Schema, verb: str) -> tuple[str, ...]:
    """Column names that are in the schema once each."""
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        columns = columns[0]
    return tuple(_column(column, schema, verb) for column in columns)


def _column(column: object, schema: pa.Schema, verb: str) -> str:
    if not isinstance(column, str):
        raise TypeError(
            f"{verb}: columns are names, not {type(column).__name__}: make a column of the expression first, "
            "df.withColumn('key', expression), and name it here"
        )
    if _QUOTED.fullmatch(column) and column not in schema.names:
        column = column[1:-1].replace("``", "`")
    only_column(schema, column, verb)
    return column


def partitions_argument(count: object, verb: str) -> int | None:
    """A number of partitions from one to MOST_PARTITIONS, or None for as many as there are slots."""
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{verb}: numPartitions must be a whole number, not {count!r}")
    if count < 1:
        raise PlanError(f"{verb}: numPartitions must be at least 1, not {count}")
    if count > MOST_PARTITIONS:
        raise PlanError(
            f"{verb}: numPartitions must be at most {MOST_PARTITIONS:,}, not {count:,}: each is a task with"
            " channels of its own to all that write"
        )
    return count


def resources_argument(profile: Any) -> Resources:
    """The needs of a task, out of a `pyspark.resource.ResourceProfile`."""
    requests = getattr(profile, "taskResources", None)
    if not isinstance(requests, Mapping):
        raise TypeError(
            f"withResources takes a pyspark.resource.ResourceProfile, not {type(profile).__name__}: "
            "ResourceProfileBuilder().require(TaskResourceRequests().cpus(2)).build"
        )
    if getattr(profile, "executorResources", None):
        raise PlanError(
            "withResources: the profile asks for executor resources too, which would need other executors: "
            "give the executors what they need in Spark's configuration, and the profile task resources only"
        )
    amounts = {str(name): float(request.amount) for name, request in requests.items()}
    cpus = amounts.pop("cpus", 1.0)
    if cpus < 1 or not cpus.is_integer():
        raise PlanError(
            f"withResources: the profile asks for {cpus:g} cpus per task, and Spark gives tasks whole cores: "
            "ask for 1 or more; with a GPU that several tasks share, give its share as the amount of gpu"
        )
    return Resources(cpus, tuple(sorted(amounts.items())), int(cpus))


def check_mode(mode: str | None, service: str | None, verb: str) -> None:
    """Refuse an unknown mode or service of an edge, and a mode that the service lacks."""
    with _said_by(verb):
        if service is not None:
            load_service(service).capabilities.kind_of(mode or AUTO, service)
        elif mode is not None:
            mode_to_kind(mode)


def session_argument(spark: object, verb: str) -> None:
    """Refuse what is no session of Spark's; without one a stream can still be run by `penstock.testing`."""
    if isinstance(spark, str | Path) or type(spark).__name__ == "SparkContext":
        raise TypeError(f"{verb} takes a SparkSession first, not a {type(spark).__name__}: {verb}(spark, path)")


@contextmanager
def _said_by(verb: str) -> Iterator[None]:
    """An error raised inside names the verb."""
    try:
        yield
    except SettingError as error:
        raise type(error)(f"{verb}: {error}") from None
