# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables as sinks: one snapshot of the table for the rows between two checkpoints.

The summary of each snapshot says which query made it, and a number that grows. A commit whose number a snapshot has
is not made again. The library `pyiceberg` makes the commits; the catalog is opened anew in the task that commits.

Limits: if a query's newest snapshot is expired while the query stands still, its last rows are committed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import PenstockError, how_to_install
from penstock.stream.commit_sink import CommitId
from penstock.stream.table_files import TableFile

_QUERY, _VERSION = "penstock.query", "penstock.version"


def iceberg_library() -> Any:
    """The module; raises PenstockError that says how to get it."""
    try:
        import pyiceberg.catalog
        import pyiceberg.exceptions
    except ImportError as error:
        raise PenstockError(f"an Iceberg table needs the library pyiceberg: {how_to_install('iceberg')}") from error
    return pyiceberg


@dataclass(frozen=True, slots=True)
class IcebergCommitter:
    """Commits to a table of a catalog, named as `load_catalog` takes it; `folder` is the URI of its files."""

    table: str
    catalog: str
    properties: Mapping[str, str] = field(repr=False)
    folder: str = ""

    @property
    def name(self) -> str:
        """The place that is written to."""
        return f"Iceberg table {self.catalog}.{self.table}"

    @contextmanager
    def loaded(self) -> Iterator[Any]:
        """The table as it is now, as long as its catalog is open."""
        catalog = iceberg_library().catalog.load_catalog(self.catalog, **self.properties)
        try:
            yield catalog.load_table(self.table)
        finally:
            catalog.close()

    def check_anew(self, query: str) -> None:
        """Raise CheckpointError where the table has a snapshot of this query."""
        with self.loaded() as table:
            known = self._newest(table, query)
        if known is not None:
            raise CheckpointError(
                f"the checkpointLocation is empty, and {self.name} has snapshots of this query: is the location away?"
                " Bring it back. To start over, which writes all rows again, give another checkpointLocation"
            )

    def check(self, commit: CommitId, messages: Sequence[bytes]) -> None:
        """Raise CheckpointError where the files of a commit that was not made are gone."""
        with self.loaded() as table:
            paths = [] if self._is_made(table, commit) else self._paths(messages)
            gone = next((path for path in paths if not table.io.new_input(path).exists()), None)
        if gone is not None:
            raise CheckpointError(
                f"{gone} is gone, and the checkpoint has its rows to commit to {self.name}: were orphan files removed"
                " while the query was stopped? Bring the file back, or start over with another checkpointLocation"
            )

    def commit(self, commit: CommitId, messages: Sequence[bytes]) -> None:
        """Name the files in a new snapshot, unless one has done so; the library refuses a file that is gone."""
        with self.loaded() as table:
            if not self._is_made(table, commit):
                table.add_files(
                    self._paths(messages),
                    snapshot_properties={_QUERY: commit.query, _VERSION: str(commit.version)},
                )

    def _paths(self, messages: Sequence[bytes]) -> list[str]:
        return [f"{self.folder}/{TableFile.of(message).name}" for message in messages]

    def _is_made(self, table: Any, commit: CommitId) -> bool:
        """Tell whether a snapshot is of this commit, or of a later one."""
        known = self._newest(table, commit.query)
        return known is not None and known >= commit.version

    @staticmethod
    def _newest(table: Any, query: str) -> int | None:
        """The number of the newest snapshot that this query made."""
        found = [
            int(snapshot.summary[_VERSION])
            for snapshot in table.snapshots()
            if snapshot.summary is not None and snapshot.summary.additional_properties.get(_QUERY) == query
        ]
        return max(found, default=None)
