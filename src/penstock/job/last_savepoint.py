# SPDX-License-Identifier: Apache-2.0
"""Savepoints that a user asks a query for: while it runs, and as it stops."""

from __future__ import annotations

from collections.abc import Callable

from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.savepoints import SavepointFolder
from penstock.errors import PenstockError

Save = Callable[[str, int], int]
"""Writes a savepoint into a folder, of the newest checkpoint, which has this number at least; returns its number."""


def saved(save: Save, path: str, take: Callable[[], int]) -> int:
    """Take a checkpoint and copy it to a folder; the number of the one that was copied."""
    folder = SavepointFolder(path)
    folder.prepare()
    try:
        number = take()
    except BaseException:
        folder.remove()
        raise
    return save(path, number)


class LastSavepoint:
    """The savepoint that a query writes as it ends, if it was asked for one."""

    def __init__(self, save: Save) -> None:
        self._save = save
        self._path = ""
        self._error: PenstockError | None = None

    def ask(self, path: str, *, is_active: bool) -> None:
        """The query is to write one when it has ended; raises CheckpointError where that can't be."""
        if self._path or not is_active:
            raise CheckpointError(
                f"no savepoint is written at {path}: the query has ended, or is told to stop already. Its last"
                " checkpoint is at its checkpointLocation"
            )
        SavepointFolder(path).prepare()
        self._path = path

    def write(self, *, is_well: bool) -> bool:
        """The query has ended; false if it should have one and has none, so that its checkpoints are still needed."""
        if not self._path:
            return True
        try:
            if not is_well:
                raise CheckpointError("the query did not end well")
            self._save(self._path, 0)
        except PenstockError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for the savepoint is told
            self._error = CheckpointError(f"{type(error).__name__}: {error}")
        if self._error is not None:
            SavepointFolder(self._path).remove()
        return self._error is None

    def check(self, ended_with: PenstockError | None) -> None:
        """The query has ended: raise CheckpointError where there is no savepoint although there should be one."""
        if self._path and self._error is not None:
            raise CheckpointError(
                f"the query has ended without the savepoint at {self._path}: {ended_with or self._error}. Its last"
                " checkpoint is at its checkpointLocation: start it again there to take another savepoint"
            )
