# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables as sinks: one snapshot of the table for the rows between two checkpoints.

The summary of each snapshot says which query made it, and a number that grows. A commit whose number a snapshot has
is not made again. The library `pyiceberg` makes the commits; the catalog is opened anew in the task that commits.

Limits: somebody who expires a query's newest snapshot while it stands still has its last rows committed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import OutsideError, PenstockError
from penstock.stream.commit_sink import CommitId
from penstock.stream.table_files import TableFile

_QUERY, _VERSION = "penstock.query", "penstock.version"


def iceberg_library() -> Any:
    """The module; raises PenstockError that says how to get it."""
    try:
        import pyiceberg.catalog
        import pyiceberg.exceptions
    except ImportError as error:
        raise PenstockError(
            "an Iceberg table needs the library pyiceberg: pip install 'penstock[iceberg]'"
        ) from error
    return pyiceberg


@dataclass(frozen=True, slots=True)
class IcebergCommitter:
    """Commits to a table of a catalog, named as `load_catalog` takes it; `folder` is the URI of the files."""

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
                " Bring it back. To begin anew, which writes all rows again, give another checkpointLocation"
            )

    def commit(self, commit: CommitId, messages: Sequence[bytes]) -> None:
        """Name the files in a new snapshot, unless one has done so."""
        library = iceberg_library()
        try:
            with self.loaded() as table:
                known = self._newest(table, commit.query)
                if known is None or known < commit.version:
                    table.add_files(
                        [f"{self.folder}/{TableFile.of(message).name}" for message in messages],
                        snapshot_properties={_QUERY: commit.query, _VERSION: str(commit.version)},
                    )
        except library.exceptions.CommitFailedException as error:
            raise OutsideError(f"{self.name} takes no commit: {error}") from error

    @staticmethod
    def _newest(table: Any, query: str) -> int | None:
        """The number of the newest snapshot that this query made."""
        found = [
            int(snapshot.summary[_VERSION])
            for snapshot in table.snapshots()
            if snapshot.summary is not None and snapshot.summary.additional_properties.get(_QUERY) == query
        ]
        return max(found, default=None)
