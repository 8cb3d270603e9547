# SPDX-License-Identifier: Apache-2.0
"""The connections of workers at their manager: one process speaks for each name.

Rules:

- A worker's name and its rows are its folder's. Two processes that run with one folder, or with copies of it, would
  answer for each other's rows: the second one is refused, and the first goes on.
- A folder is known by the tokens of its starts. One whose tokens lack the one that was here last is a copy that has
  gone another way (`ManagerCore.check_lineage`).
- One that has it is the same folder, started again, or a copy of it. It is taken at once where nothing is left of the
  former process. Else the manager waits for a word of that: with one the new one is refused. Without one it is taken
  after a while, sooner where the former one's connection is gone too: the manager can't tell a host that is cut off
  from one that is gone.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from penstock.connection.listeners import nobody_listens
from penstock.connection.protection import Protection
from penstock.errors import EnvironmentLostError, ProtocolError, SettingError
from penstock.remote import messages as ask
from penstock.remote.manager_core import ManagerCore

_LOOK_SECONDS = 0.1
_BEATS_SECONDS = 3.0
"""A worker that lives has beaten within this time, three times."""
_GONE_SECONDS = 10.0
"""One whose connection is gone, and that may live, has come back within this time."""


@dataclass(slots=True)
class WorkerLine:
    """One connection of a peer that has proved to be a worker."""

    worker: str
    is_open: bool = True
    heard: float = -math.inf


class WorkerLines:
    """The connection that speaks for each worker; `patience` is in seconds, for one that is silent."""

    def __init__(self, core: ManagerCore, protection: Protection, patience: float) -> None:
        self._core = core
        self._protection = protection
        self._patience = patience
        self._lines: dict[str, WorkerLine] = {}

    async def admit(self, line: WorkerLine, asked: ask.Enroll) -> None:
        """Wait until this one may speak for its worker; SettingError where another one does."""
        began = time.monotonic()
        while (known := self._core.state.workers.get(asked.worker)) is not None:
            self._core.workers.check_lineage(asked)
            former = self._lines.get(asked.worker, line)
            if former is not line and former.heard > began:
                raise SettingError(
                    f"the worker at {asked.address} is refused: it comes as {asked.worker}, and that one lives, at"
                    f" {known.address}, with this folder or one that this is a copy of. Start this one with another"
                    " --dir, which is empty: then it has a name of its own"
                )
            is_there, waited = former is not line and former.is_open, time.monotonic() - began
            if not is_there or waited > _BEATS_SECONDS:
                if known.address == asked.address:
                    break
                if await nobody_listens(self._protection.towards(known.address), known.address):
                    break
            if waited > (self._patience if is_there else min(self._patience, _GONE_SECONDS)):
                break
            await asyncio.sleep(_LOOK_SECONDS)
            if not line.is_open:
                raise EnvironmentLostError(f"{asked.worker} at {asked.address} has gone")
        self._core.workers.check_lineage(asked)
        self._lines[asked.worker] = line
        line.heard = time.monotonic()

    def beats(self, line: WorkerLine) -> None:
        """A worker gives word; SettingError where another process has come in its place."""
        found = self._lines.get(line.worker)
        if found is None:
            raise ProtocolError(f"{line.worker} has not said that it is there")
        if found is not line:
            raise SettingError(
                f"worker {line.worker} was silent, and another process with the same folder, or a copy of it, is"
                " in its place now: this one is to end"
            )
        line.heard = time.monotonic()

    def closed(self, line: WorkerLine) -> bool:
        """A connection is gone; tells whether it was the one that spoke for its worker."""
        line.is_open = False
        is_current = self._lines.get(line.worker) is line
        if is_current:
            del self._lines[line.worker]
        return is_current
