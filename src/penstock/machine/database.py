# SPDX-License-Identifier: Apache-2.0
"""A small SQLite database of one process: what a service has to know after its restart.

Rules: a row that was written is there after `kill -9`; after a loss of power the newest ones may be missing. Only its
owner can read the file. A database of another version is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import StorageError

Failure = Callable[[Exception], StorageError]


@dataclass(frozen=True, slots=True)
class DatabaseForm:
    """The tables of a database, and their version; what makes one of an older version one of this, or what to do."""

    tables: str
    version: int
    upgrade: Mapping[int, str] = field(default_factory=dict)
    older: str = "start that one, or remove the folder with all that it keeps"


class Database:
    """The database at `path`, made if it is not there; `failure` words what can't be done with it."""

    def __init__(self, path: Path, form: DatabaseForm, failure: Failure, *, stays_in_its_thread: bool = True) -> None:
        self._failure = failure
        version, upgrade = form.version, form.upgrade
        try:
            path.touch(mode=0o600)
            self._base = sqlite3.connect(path, isolation_level=None, check_same_thread=stays_in_its_thread)
            self._base.execute("pragma journal_mode = wal")
            self._base.execute("pragma synchronous = normal")
            (found,) = self._base.execute("pragma user_version").fetchone()
            if found in upgrade:
                self._base.executescript(f"begin; {upgrade[found]} pragma user_version = {version}; commit;")
                found = version
            if not found:
                self._base.executescript(f"begin; {form.tables} pragma user_version = {version}; commit;")
        except (sqlite3.Error, OSError) as error:
            raise failure(error) from error
        if found not in (0, version):
            raise StorageError(f"{path} is of version {found}, this Penstock writes version {version}: {form.older}")

    def run(self, text: str, *values: object) -> sqlite3.Cursor:
        """Run one statement; StorageError where that can't be."""
        try:
            return self._base.execute(text, values)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """All statements of the block, or none of them; within another one of that."""
        if self._base.in_transaction:
            yield
            return
        try:
            with self._base:
                self._base.execute("begin")
                yield
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Close it; idempotent."""
        self._base.close()
