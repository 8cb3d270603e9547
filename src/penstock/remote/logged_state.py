# SPDX-License-Identifier: Apache-2.0
"""The manager's state and its log: what was decided is on the disk before any peer is told, or is undone.

While the log can't be written (a full disk, one that fails, one that may not be written):

- A request that would change something is refused with the reason, and changes nothing. The first one, which finds
  it out, is undone: the state is read from the log again.
- A request that changes nothing is answered, so readers go on.
- Losses, leases that end and what is released are decided all the same, and written when there is room, in their
  order. A manager that is killed before that finds out again, or keeps something for longer; it never says less than
  it has promised. Until then no worker is told to drop anything (`has_failed`).

The log is tried at each turn of the clock, so the operator need not start the manager again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.errors import StorageError
from penstock.remote.known_workers import ManagerLimits
from penstock.remote.log_history import TOKEN_BYTES
from penstock.remote.manager_core import ManagerCore
from penstock.remote.manager_state import ManagerState, Record
from penstock.remote.state_log import StateLog

_LOG = logging.getLogger("penstock.remote.manager")
T = TypeVar("T")


class LoggedState:
    """The core of a manager, with its log in this folder. StorageError where the log can't be read."""

    def __init__(self, folder: Path, limits: ManagerLimits, now: float, *, fsync: bool = False) -> None:
        self._log = StateLog(folder, fsync=fsync)
        state = ManagerState()
        for record in self._log.read():
            state.apply(record)
        self.core = ManagerCore(state, limits, now)
        self._failure: StorageError | None = None
        self._unwritten: list[Record] = []
        started = "started", secrets.token_hex(TOKEN_BYTES)
        try:
            self._log.append([started])
            state.apply(started)
        except StorageError as error:  # then the log goes on under the token of the start before
            self._has_failed(error)

    @property
    def has_failed(self) -> bool:
        """True as long as the log can't be written."""
        return self._failure is not None

    def decided(self, decide: Callable[[], T]) -> T:
        """Decide, keep what that has changed, then answer; StorageError where that can't be kept."""
        self.core.sealed = self._failure
        try:
            return decide()
        finally:
            self.core.sealed = None
            self._write(self.core.take_records())

    def freed(self, decide: Callable[[], T]) -> T:
        """The same for what loses or releases something: that is kept when it can be."""
        try:
            return decide()
        finally:
            records = self.core.take_records()
            if self._failure is None and records:
                try:
                    self._log.append(records)
                except StorageError as error:
                    self._has_failed(error)
            if self._failure is not None:
                self._unwritten += records

    def look(self) -> None:
        """Write what could not be written, and begin a new log where the old one has grown."""
        try:
            if self._failure is not None:
                self._log.try_room()
                self._log.append(self._unwritten)
                _LOG.warning("the manager keeps its state again, with %d records that waited", len(self._unwritten))
                self._failure, self._unwritten = None, []
            if self._log.has_grown:
                self._log.replace(self.core.state.records())
        except StorageError as error:
            if self._failure is None:
                _LOG.warning("the log goes on as it is: %s", error)

    def close(self) -> None:
        """Close the log; idempotent."""
        self._log.close()

    def _write(self, records: list[Record]) -> None:
        if not records:
            return
        try:
            self._log.append(records)
        except StorageError as error:
            self._has_failed(error)
            self._undo()
            raise

    def _undo(self) -> None:
        """Know what the log says; a manager that can't read it either ends, as it knows what it does not keep."""
        try:
            self.core.restore(self._log.kept())
        except StorageError as error:
            raise SystemExit(
                f"penstock: {error}. Nor can its log be read, so the manager knows what it does not keep, and ends."
                " Start it again in the same --dir when the log is there again: workers keep their rows until then"
            ) from error

    def _has_failed(self, error: StorageError) -> None:
        _LOG.error("%s. Until then nothing new is begun, and what is there is served", error)
        self._failure = error
