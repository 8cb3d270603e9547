# SPDX-License-Identifier: Apache-2.0
"""A job whose tasks write files: it runs now, and gives the files that its attempts named when it has succeeded.

The caller publishes these and no others; files beside them are of attempts that failed, or of a run whose names were
lost before they were read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.api.lineage import Step
from penstock.api.persisted import PersistedReading
from penstock.api.read_results import run_and_read
from penstock.api.streaming.refusals import refuse_stream
from penstock.errors import SettingError
from penstock.graph import Operator, with_nulls_of
from penstock.operators.file_write import STATUS_SCHEMA
from penstock.operators.verbs import Promise


class WritableStream(Protocol):
    """The members of a stream that is written."""

    branches: tuple[Step, ...]
    session: Any

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""

    def applied(self, operator: Operator, schema: pa.Schema) -> WritableStream:
        """The stream with an operator after it."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file that a task wrote: its name in the folder, its rows, its size."""

    name: str
    rows: int
    bytes: int


def require_writer(stream: WritableStream, verb: str) -> None:
    """Refuse a stream without an end, and one that has no session to run it."""
    refuse_stream(stream.branches, verb)
    if stream.session is None:
        raise SettingError(f"{verb} needs a Spark session, and this stream's sources have none")


def promised(stream: WritableStream, columns: pa.Schema, table: str) -> WritableStream:
    """The stream held to what a table of the same columns says of nulls, at any depth."""
    schema = with_nulls_of(stream.schema, columns)
    return stream if schema.equals(stream.schema) else stream.applied(Promise(schema, table), schema)


def write_files(stream: WritableStream, operator: Operator, prepare: Callable[[], None]) -> list[WrittenFile]:
    """Run the stream with an operator that gives status rows; `prepare` is called when it has been planned once."""
    from penstock.spark.runtime import SparkRuntime

    runtime = SparkRuntime.of(stream.session)
    reading = PersistedReading(runtime, runtime.settings())
    branches = stream.applied(operator, STATUS_SCHEMA).branches
    rows = run_and_read(
        branches, reading, lambda finished: runtime.rows(finished, STATUS_SCHEMA, reading.settings), prepare
    )
    return [WrittenFile(str(name), int(count), int(size)) for name, count, size in rows]
