# SPDX-License-Identifier: Apache-2.0
"""A Python data source over the files of numbers that have come, for queries that fail as they start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


def arrived(folder: Path) -> list[int]:
    """The numbers that have come."""
    files = sorted(
        (file for file in folder.iterdir() if not file.name.startswith(".")), key=lambda file: int(file.name)
    )
    return [int(line) for file in files for line in file.read_text().split()]


class Arrived(DataSource):  # type: ignore[misc]
    """The numbers at the option `path`, from the first one on, or where `start` is "latest" those that are new."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return "arrived"

    def schema(self) -> str:
        """One column."""
        return "n long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """The reader."""
        return _ArrivedReader(Path(self.options["path"]), begins_at_end=self.options["start"] == "latest")


class _ArrivedReader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, folder: Path, *, begins_at_end: bool) -> None:
        self._folder = folder
        self._begins_at_end = begins_at_end

    def initialOffset(self) -> dict[str, int]:
        return {"n": len(arrived(self._folder)) if self._begins_at_end else 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"n": len(arrived(self._folder))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        middle = (start["n"] + end["n"]) // 2
        return [InputPartition((start["n"], middle)), InputPartition((middle, end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from ((number,) for number in arrived(self._folder)[slice(*partition.value)])
