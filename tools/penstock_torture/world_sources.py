# SPDX-License-Identifier: Apache-2.0
"""PySpark data sources for queries of the failing world: numbers up to an end, and a ledger of what was committed.

The ledger is a folder. Each `write` makes a file of rows that nobody counts, and `commit` names the files in
`batch-<id>`. It refuses an id that it knows with other files, so a batch that comes twice otherwise is seen.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

_AT_ONCE = 60


class NumbersReader(DataSourceStreamReader):  # type: ignore[misc]
    """Ranges of sixty numbers, in two partitions, up to `end`."""

    def __init__(self, end: int) -> None:
        self.end = end

    def initialOffset(self) -> dict[str, int]:
        """The first number."""
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        """One range after the start."""
        return {"n": min(self.end, start["n"] + _AT_ONCE)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Two halves."""
        middle = (start["n"] + end["n"]) // 2
        return [InputPartition((start["n"], middle)), InputPartition((middle, end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Tuples."""
        yield from ((number,) for number in range(*partition.value))


def numbers(path: int) -> type[DataSource]:
    """A class whose name tells it from that of another source of the query."""

    class Numbers(DataSource):  # type: ignore[misc]
        """Numbers up to the option `end`."""

        @classmethod
        def name(cls) -> str:
            """With the number of the query's source."""
            return f"numbers{path}"

        def schema(self) -> str:
            """One column."""
            return "value long"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            """The reader."""
            return NumbersReader(int(self.options["end"]))

    return Numbers


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """The file that a task wrote."""

    file: str


class LedgerWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Rows as JSON lines."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """The rows into a file of its own."""
        self.path.mkdir(exist_ok=True)
        name = uuid.uuid4().hex
        rows = [row for batch in iterator for row in batch.to_pylist()]
        (self.path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Written(name)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Name the files, whole."""
        files = "\n".join(sorted(message.file for message in messages))
        named = self.path / f"batch-{batchId}"
        if named.exists() and named.read_text() != files:
            raise ValueError(f"batch {batchId} was committed with other files")
        fresh = self.path / f".{uuid.uuid4().hex}"
        fresh.write_text(files)
        fresh.rename(named)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Remove the files."""
        for message in messages:
            (self.path / message.file).unlink(missing_ok=True)


class Ledger(DataSource):  # type: ignore[misc]
    """The sink, at the option `path`."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return "ledger"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        """The writer."""
        return LedgerWriter(self.options["path"])


def ledger_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that are committed."""
    named = [file for batch in path.glob("batch-*") for file in batch.read_text().split()]
    return [json.loads(line) for file in named for line in (path / file).read_text().splitlines()]
