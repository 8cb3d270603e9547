# SPDX-License-Identifier: Apache-2.0
"""`penstock.readStream`: streams that may have no end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from penstock.api.habits import INSTEAD_OF_READER
from penstock.api.lineage import SourceStep
from penstock.api.partition_columns import PartitionTyping
from penstock.api.reading import reading_of
from penstock.api.schemas import partitions_argument, schema_argument
from penstock.api.stream import Stream
from penstock.api.streaming.formats import FORMATS, SourceRequest
from penstock.api.streaming.options import TakesOptions
from penstock.errors import PlanError
from penstock.operators.expressions.calendar import arrow_zone
from penstock.stream.sources import StreamSource

if TYPE_CHECKING:
    from penstock.spark.user_types import Schema, SparkSession

_BATCH_ROWS = 10_000
"""So many rows of a Python data source become one batch where the session sets no limit."""


class _ReadStream:
    """Read a stream without an end, as PySpark's `spark.readStream`; rows flow once it is written and started."""

    # An object, so that `readStream.format(...)`, as it is in PySpark, gets a sentence.

    def __call__(self, spark: SparkSession) -> StreamReader:
        return StreamReader(spark)

    if not TYPE_CHECKING:  # else every name would pass

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; for a reader's steps with the way to write them."""
            if hasattr(StreamReader, name):
                raise AttributeError(f"readStream takes the session first: penstock.readStream(spark).{name}(...)")
            raise AttributeError(f"penstock.readStream has no attribute {name!r}")


readStream = _ReadStream()  # noqa: N816 - PySpark's name


class StreamReader(TakesOptions):
    """A source in the making: its format, schema and options. `load` gives the stream."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__("readStream", INSTEAD_OF_READER)
        self._spark = spark
        self._format: str | StreamSource = "parquet"
        self._schema: pa.Schema | None = None

    def format(self, source: str | StreamSource) -> Self:
        """`rate`, `parquet`, `text`, `csv`, `json`, a data source that was registered, or a source of your own.

        `spark.dataSource.register` makes PySpark's Python data sources known; yours is in `penstock.stream.sources`.
        """
        if not isinstance(source, str) and not hasattr(source, "open"):
            raise TypeError(f"readStream.format takes a name or a source with open(), not {type(source).__name__}")
        self._format = source
        return self

    def schema(self, schema: Schema) -> Self:
        """The rows' schema: DDL, a StructType or a `pyarrow.Schema`. Files need one, but for text."""
        self._schema = schema_argument(schema, "readStream.schema")
        return self

    def load(self, path: str | None = None) -> Stream:
        """The stream; `path` is the folder in which files arrive. Raises PlanError or SettingError."""
        source = self._source(path)
        if not isinstance(self._format, str):
            self._options.refuse_others(source.name, ())
        is_theirs = isinstance(self._format, str) and self._format.lower() not in FORMATS
        asked = None if is_theirs else self._options.value("numPartitions", int, None)
        asked = partitions_argument(asked, "readStream")
        limit = source.splits()
        step = SourceStep(source.name, source.schema, source, limit=limit, partitions=asked, streaming=True)  # type: ignore[arg-type]
        return Stream((step,), self._spark)

    def parquet(self, path: str) -> Stream:
        """Parquet files that arrive in a folder."""
        return self.format("parquet").load(path)

    def text(self, path: str) -> Stream:
        """Lines of text files that arrive in a folder, in column `value`."""
        return self.format("text").load(path)

    def csv(self, path: str) -> Stream:
        """CSV files that arrive in a folder."""
        return self.format("csv").load(path)

    def json(self, path: str) -> Stream:
        """Files of JSON lines that arrive in a folder."""
        return self.format("json").load(path)

    def _source(self, path: str | None) -> StreamSource:
        if not isinstance(self._format, str):
            return self._format
        make = FORMATS.get(self._format.lower())
        if make is None:
            return self._registered(self._format, path)
        zone = arrow_zone(PartitionTyping.of(self._spark).timezone)
        return make(SourceRequest(path, self._schema, self._options, zone, reading_of(self._spark, ())))

    def _registered(self, name: str, path: str | None) -> StreamSource:
        """A Python data source that the session knows."""
        from penstock.spark.data_source_reader import DataSourceStream
        from penstock.spark.data_sources import made, registered

        cls = registered(self._spark, name)
        if cls is None:
            raise PlanError(
                f"readStream.format({name!r}): there is no such source: use one of {', '.join(sorted(FORMATS))}, a"
                " Python data source that spark.dataSource.register(...) has made known, or a source of your own"
            )
        given = self._options.given()
        options = given if path is None else {**given, "path": path}
        batch_rows = int(self._spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))
        return DataSourceStream(made(cls, options, self._schema), batch_rows if batch_rows > 0 else _BATCH_ROWS)
