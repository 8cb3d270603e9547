# SPDX-License-Identifier: Apache-2.0
"""PySpark's Python data sources as sinks: `DataSourceStreamWriter` and `DataSourceStreamArrowWriter`.

Each task calls `write` once for the rows between two barriers, with an iterator that ends at the second, in a thread
of its own as for any function over an iterator. Its message goes to the committing task (`stream/commit_sink`), which
calls `commit(messages, batchId)` when the checkpoint is complete: again after a failure, with the same id. The id is
the checkpoint's number, so it grows and leaves numbers out.

A task whose attempt ends before its checkpoint wrote in vain: `abort` hears of the messages that had come.

Messages are pickles, as in Spark. They come sealed with a key that travels with the query's code, so nothing is
unpickled that another peer made up. A process that can write the checkpoint location could forge them.
"""

from __future__ import annotations

import hmac
import pickle
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from penstock.errors import PlanError, ProtocolError
from penstock.operators.functions import MapInArrow
from penstock.spark.data_sources import MadeSource
from penstock.spark.types import spark_batches
from penstock.stream.commit_sink import MESSAGES, CommitId, CommitSink, message_batch
from penstock.stream.outside import outside

_SEAL = "sha256"
_SEAL_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Target:
    """The source that is written to; `key` seals messages."""

    made: MadeSource
    overwrite: bool
    key: bytes = field(repr=False)

    def writer(self) -> DataSourceStreamWriter:
        """A new writer, as Spark has one for each call."""
        writer = self.made.loaded().streamWriter(self.made.types, self.overwrite)
        if not isinstance(writer, DataSourceStreamWriter):
            raise PlanError(
                f"{self.made.name}: streamWriter() gives {type(writer).__name__}: it gives a DataSourceStreamWriter"
            )
        return writer

    def sealed(self, message: object) -> bytes:
        """A message on its way."""
        packed: bytes = cloudpickle.dumps(
            message
        )  # as Spark, which lets it be of a class that only the driver can import
        return hmac.digest(self.key, packed, _SEAL) + packed

    def unsealed(self, message: bytes) -> bytes:
        """Inverse, still a pickle; raises ProtocolError for one that no task of this query made."""
        seal, packed = message[:_SEAL_BYTES], message[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, hmac.digest(self.key, packed, _SEAL)):
            raise ProtocolError(f"{self.made.name}: a commit message was not made by a task of this query")
        return packed


@dataclass(frozen=True, slots=True)
class WriteRows:
    """The function of the writing stage: the rows between two barriers become one message."""

    target: _Target

    @property
    def __name__(self) -> str:
        """The name that `explain` shows."""
        return f"write to {self.target.made.name}"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Let the user's writer read them to the end."""
        writer = self.target.writer()
        rows = spark_batches(batches, self.target.made.schema)
        with outside(f"data source {self.target.made.name} can't be written"):
            message = writer.write(rows if isinstance(writer, DataSourceStreamArrowWriter) else self._rows(rows))
        for _ in rows:  # a writer need not look at all
            pass
        if message is not None and not isinstance(message, WriterCommitMessage):
            raise PlanError(
                f"{self.target.made.name}: write() gives {type(message).__name__}: it gives a WriterCommitMessage"
            )
        yield message_batch(self.target.sealed(message))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        for batch in batches:
            yield from ArrowTableToRowsConversion.convert(pa.Table.from_batches([batch]), self.target.made.types)


@dataclass(frozen=True, slots=True)
class DataSourceCommitter:
    """The committing task's part."""

    target: _Target

    @property
    def name(self) -> str:
        """The place that is written to."""
        return f"data source {self.target.made.name}"

    def accepted(self, message: bytes) -> bytes:
        """The message without its seal."""
        return self.target.unsealed(message)

    def commit(self, commit: CommitId, messages: Sequence[bytes]) -> None:
        """Call the user's `commit`."""
        self.target.writer().commit(_loaded(messages), commit.checkpoint)

    def abort(self, checkpoint: int, messages: Sequence[bytes]) -> None:
        """Call the user's `abort`."""
        self.target.writer().abort(_loaded(messages), checkpoint)


def _loaded(messages: Sequence[bytes]) -> list[WriterCommitMessage | None]:
    return [pickle.loads(message) for message in messages]  # noqa: S301 - was sealed, see above


def data_source_sink(made: MadeSource, uid: str, timezone: str, *, overwrite: bool = False) -> CommitSink:
    """The sink of a query that writes to a Python data source."""
    target = _Target(made, overwrite, secrets.token_bytes(_SEAL_BYTES))
    return CommitSink(DataSourceCommitter(target), MapInArrow(WriteRows(target), MESSAGES, timezone), uid)
