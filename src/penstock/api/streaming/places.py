# SPDX-License-Identifier: Apache-2.0
"""Paths and URIs that users write, as a file system and a folder in it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import fs

from penstock.api.reading import is_case_sensitive
from penstock.errors import PlanError
from penstock.graph import of_one_name
from penstock.machine.locations import at_uri, here, is_here, is_uri, path_here


def filesystem_of(path: str, verb: str) -> tuple[fs.FileSystem, str]:
    """The file system and the folder; a path without a scheme is one of this machine. Raises PlanError."""
    if not is_uri(path):
        return here(), path_here(path)
    try:
        return at_uri(path)
    except (ValueError, OSError) as error:
        raise PlanError(f"{verb}: {path} can't be reached: {error}") from error


def reader_of_rows(spark: Any, schema: pa.Schema, sink: str) -> Any:
    """A reader of Spark's for files of a query's rows, whatever calendar the session reads other files by.

    Raises PlanError for columns that are one to the session.
    """
    if not is_case_sensitive(spark) and (twice := of_one_name(schema.names)):
        raise PlanError(
            f"{sink}: columns {', '.join(map(repr, twice))} are one to Spark, which reads the rows from files: rename"
            " them, or set spark.sql.caseSensitive=true"
        )
    from penstock.spark.types import struct_type

    modes = dict.fromkeys(("datetimeRebaseMode", "int96RebaseMode"), "CORRECTED")
    return spark.read.options(**modes).schema(struct_type(schema))


def one_spelling(location: str) -> str:
    """The path or URI of a checkpointLocation, or of a table: it tells queries apart, and processes understand it.

    One that can't be reached stays as it is: the open that fails says why.
    """
    if not is_uri(location):
        return path_here(location)
    try:
        filesystem, path = at_uri(location)
    except (ValueError, OSError):
        return location
    return path if is_here(filesystem) else location.rstrip("/")
