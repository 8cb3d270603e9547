# SPDX-License-Identifier: Apache-2.0
"""Delta Lake tables as sinks: one version of the table for the rows between two checkpoints.

Each commit carries Delta's own mark for that, an application's transaction: the query and a number that grows. A
commit whose number the table has is not made again. The library `deltalake` makes the commits.

The library does not look at the files that it is told of. One that is gone would fail every reader of the table, so
nothing is committed then: somebody has removed what no version named yet, as by a `vacuum` of all files.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from penstock.checkpoint.errors import CheckpointError
from penstock.errors import OutsideError, PenstockError
from penstock.machine.disk import Disk
from penstock.stream.commit_sink import CommitId
from penstock.stream.table_files import TableFile

_IMPORTANT = ("SchemaMismatchError", "DeltaProtocolError")
"""Errors of the library that another attempt would meet again."""


def delta_library() -> Any:
    """The module; raises PenstockError that says how to get it."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise PenstockError("a Delta table needs the library deltalake: pip install 'penstock[delta]'") from error
    return deltalake


@dataclass(frozen=True, slots=True)
class DeltaCommitter:
    """Commits to the table at `uri`, which is there; `root` is its folder."""

    uri: str
    filesystem: pafs.FileSystem
    root: str

    @property
    def name(self) -> str:
        """The place that is written to."""
        return f"Delta table {self.uri}"

    def check_anew(self, query: str) -> None:
        """Raise CheckpointError where the table has a commit of this query."""
        library = delta_library()
        if not library.DeltaTable.is_deltatable(self.uri):
            return
        if library.DeltaTable(self.uri).transaction_version(query) is not None:
            raise CheckpointError(
                f"the checkpointLocation is empty, and {self.name} has commits of this query: is the location away?"
                " Bring it back. To begin anew, which writes all rows again, give another checkpointLocation"
            )

    def check(self, commit: CommitId, messages: Sequence[bytes]) -> None:
        """Raise CheckpointError where the files of a commit that was not made are gone."""
        if _is_made(delta_library().DeltaTable(self.uri), commit):
            return
        try:
            self._require([TableFile.of(message) for message in messages])
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{error.filename} is {error.strerror}, and the checkpoint has its rows to commit to {self.name}: was"
                " the table vacuumed while the query stood still? Bring the file back, or begin anew with another"
                " checkpointLocation"
            ) from None

    def commit(self, commit: CommitId, messages: Sequence[bytes]) -> None:
        """Name the files in a new version, unless a version has done so."""
        library = delta_library()
        files = [TableFile.of(message) for message in messages]
        try:
            table = library.DeltaTable(self.uri)
            if _is_made(table, commit):
                return
            self._require(files)
            mark = library.Transaction(commit.query, commit.version, int(time.time() * 1000))
            table.create_write_transaction(
                [self._added(library, file) for file in files],
                "append",
                table.schema(),
                commit_properties=library.CommitProperties(
                    custom_metadata={"penstock.checkpoint": str(commit.checkpoint)}, app_transactions=[mark]
                ),
            )
            self._sync(table.version() + 1)
        except library.exceptions.DeltaError as error:
            if type(error).__name__ in _IMPORTANT:
                raise
            raise OutsideError(f"{self.name} takes no commit: {type(error).__name__}: {error}") from error

    def _require(self, files: Sequence[TableFile]) -> None:
        """Raise OSError where one of these files is not there as it was written."""
        paths = [f"{self.root}/{file.name}" for file in files]
        for file, info in zip(files, self.filesystem.get_file_info(paths), strict=True):
            if info.type != pafs.FileType.File:
                raise FileNotFoundError(errno.ENOENT, "gone", info.path)
            if info.size != file.size:
                raise FileNotFoundError(errno.ENOENT, f"another file of {info.size} bytes", info.path)

    def _sync(self, version: int) -> None:
        """Wait until the log has the versions from this one on on the disk; the library does not.

        The next checkpoint does not name the files any more.
        """
        disk = Disk(self.filesystem)
        log = f"{self.root}/_delta_log"
        newest = delta_library().DeltaTable(self.uri).version() if disk.is_needed else 0
        for number in range(version, newest + 1):
            disk.sync_file(f"{log}/{number:020d}.json")
        if disk.is_needed:
            disk.sync_folder(log)

    def _added(self, library: Any, file: TableFile) -> Any:
        return library.transaction.AddAction(
            file.name,
            file.size,
            {},
            int(time.time() * 1000),
            data_change=True,
            stats=json.dumps({"numRecords": file.rows}),
        )


def _is_made(table: Any, commit: CommitId) -> bool:
    """Tell whether the table has this commit."""
    known = table.transaction_version(commit.query)
    return known is not None and known >= commit.version
