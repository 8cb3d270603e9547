# SPDX-License-Identifier: Apache-2.0
"""PySpark data sources as users write them: numbers from files that tests write, in two kinds of readers.

`numbers` reads what the file `<path>/end` says: so many numbers, in two partitions of each range. `simple_numbers`
gives ten at a time. Each notes in `<path>/committed` what it was told. `ledger` writes rows into files that nobody
sees, and names them in `<path>/batch-<id>` when they are committed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)

from underway import listed

_AT_ONCE = 10


def _end(path: str) -> int:
    return int((Path(path) / "end").read_text())


def _note(path: str, offset: Any) -> None:
    with (Path(path) / "committed").open("a") as file:
        file.write(json.dumps(offset) + "\n")


class NumbersReader(DataSourceStreamReader):
    """Each range is two partitions, the second of batches where `arrow` is true."""

    def __init__(self, options: Any) -> None:
        self.path = options["PATH"]
        self.arrow = options.get("arrow") == "true"

    def initialOffset(self) -> dict[str, int]:
        """The first number."""
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        """The file's."""
        return {"n": _end(self.path)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Two halves."""
        middle = (start["n"] + end["n"]) // 2
        return [InputPartition((start["n"], middle)), InputPartition((middle, end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Tuples, rows by name, or batches."""
        first, last = partition.value
        if self.arrow:
            numbers = range(first, last)
            texts = pa.array([str(number) for number in numbers], pa.string())
            yield pa.record_batch({"n": pa.array(numbers, pa.int64()), "text": texts})
            return
        for number in range(first, last):
            yield (number, str(number)) if number % 2 else Row(text=str(number), n=number)

    def commit(self, end: dict[str, int]) -> None:
        """Note it."""
        _note(self.path, end)


class Numbers(DataSource):
    """The class that users register."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return "numbers"

    def schema(self) -> str:
        """As a text."""
        return "n long, text string"

    def streamReader(self, schema: Any) -> NumbersReader:
        """With the options, whose names have any case."""
        return NumbersReader(self.options)


class SimpleNumbersReader(SimpleDataSourceStreamReader):
    """Ten numbers at a time."""

    def __init__(self, path: str) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, int]:
        """The first number."""
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        """Up to ten."""
        end = {"n": min(_end(self.path), start["n"] + _AT_ONCE)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        """The same again."""
        return iter([(number, str(number)) for number in range(start["n"], end["n"])])

    def commit(self, end: dict[str, int]) -> None:
        """Note it."""
        _note(self.path, end)


class SimpleNumbers(Numbers):
    """With the simple reader."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return "simple_numbers"

    def streamReader(self, schema: Any) -> Any:
        """There is none."""
        return DataSource.streamReader(self, schema)

    def simpleStreamReader(self, schema: Any) -> SimpleNumbersReader:
        """This one."""
        return SimpleNumbersReader(self.options["path"])


@dataclass
class Written(WriterCommitMessage):
    """The file that a task wrote."""

    file: str


class LedgerWriter(DataSourceStreamWriter):
    """Rows as JSON lines."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def write(self, iterator: Iterator[Any]) -> Written:
        """The rows into a file of its own."""
        return self.stored([row.asDict() for row in iterator])

    def stored(self, rows: list[dict[str, Any]]) -> Written:
        """Write them."""
        self.path.mkdir(exist_ok=True)
        name = uuid.uuid4().hex
        (self.path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Written(name)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Name the files."""
        self.path.mkdir(exist_ok=True)
        files = sorted(message.file for message in messages if message is not None)
        named = self.path / f"batch-{batchId}"
        if named.exists() and named.read_text().split() != files:
            raise ValueError(f"batch {batchId} was committed with other files")
        named.write_text("\n".join(files))

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Remove the files."""
        for message in messages:
            if message is not None:
                (self.path / message.file).unlink()


class LedgerArrowWriter(DataSourceStreamArrowWriter, LedgerWriter):
    """The same of batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        """The rows into a file of its own."""
        return self.stored([row for batch in iterator for row in batch.to_pylist()])


class Ledger(DataSource):
    """The class that users register."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return "ledger"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        """Of one kind or the other."""
        kind = LedgerArrowWriter if self.options.get("arrow") == "true" else LedgerWriter
        return kind(self.options["path"])


def ledger(path: Path) -> list[dict[str, Any]]:
    """The rows that are committed, in order."""
    named = [file for batch in listed(path, "batch-*") for file in batch.read_text().split()]
    lines = [line for file in named for line in (path / file).read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda row: row["n"])
