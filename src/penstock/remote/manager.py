# SPDX-License-Identifier: Apache-2.0
"""The manager: the shell of `manager_core`, its log, and the connections of workers and applications.

Rules: what was decided is in the log before any peer is told. A worker whose connection breaks, or that a task could
not reach, is looked for at once: if nothing listens at its address it has `rejoin` seconds to come back, else until
its silence is too long. A manager whose log can't be written refuses what is new, and serves what is there
(`logged_state`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.connection.listeners import nobody_listens
from penstock.errors import AuthenticationError, SettingError
from penstock.link.wire import Done
from penstock.remote import messages as ask
from penstock.remote.known_workers import ManagerLimits
from penstock.remote.log_history import sealed_word
from penstock.remote.logged_state import LoggedState
from penstock.remote.peers import Entrance, ServiceAccess, application_of, worker_of
from penstock.remote.wire import Guest, PeerLogic, no_rows
from penstock.remote.worker_lines import WorkerLine, WorkerLines
from penstock.shuffle.requests import Request

_LOG = logging.getLogger("penstock.remote.manager")
_TICK_SECONDS = 0.5
_LOOKS = (0.0, 0.02, 0.1, 0.3, 1.0)
"""Seconds before each look at a worker that seems gone: a process that is killed may close its connections first."""
_REJOIN_LOOK_SECONDS = 0.1
_PATIENCE_SHARE = 0.8
"""Of the silence for which a worker is waited for: it is not lost while another process waits for its place."""
_WATCH_SECONDS = 5.0
"""The seconds that a driver's question for losses stays open."""
_MOST_WATCHING = 64
"""The most open questions for losses of one application."""


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """The options of a manager: its address, the folder of its state, its limits."""

    listen: str
    folder: Path
    limits: ManagerLimits = field(default_factory=ManagerLimits)
    fsync: bool = False


class RemoteManager:
    """One manager process."""

    def __init__(self, options: ManagerOptions, access: ServiceAccess) -> None:
        self._options = options
        self._access = access
        self._kept = LoggedState(options.folder, options.limits, time.monotonic(), fsync=options.fsync)
        self.core = self._kept.core
        patience = options.limits.silence * _PATIENCE_SHARE
        self._lines = WorkerLines(self.core, access.protection, patience)
        self._enrolling: set[asyncio.Task[Done]] = set()
        self._entrance = Entrance(access, self)
        self._watching: dict[str, list[tuple[int, asyncio.Future[ask.Losses]]]] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._has_ended = False
        """Connections that are closed at the end say nothing of their workers, and the log is closed."""
        self.address = ""

    async def open(self) -> str:
        """Listen; the address with its port."""
        self.address = await self._entrance.open(self._options.listen)
        return self.address

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                self._kept.look()
                self._entrance.look(time.monotonic())
                self._kept.freed(lambda: self.core.pass_time(time.monotonic()))
                self._tell()
                await asyncio.sleep(_TICK_SECONDS)
        finally:
            self._has_ended = True
            for task in (*self._looks.values(), *self._enrolling):
                task.cancel()
            self._entrance.close()
            self._kept.close()

    def entered(self, identity: str, guest: Guest | None) -> PeerLogic:
        """A worker, a driver or a task has come in."""
        if worker := worker_of(identity):
            line = WorkerLine(worker)

            def lost(error: BaseException | None) -> None:
                if self._lines.closed(line):
                    self._look(worker, str(error or "it closed"))

            return PeerLogic(self._of_worker(line), {}, lost)
        return PeerLogic(self._of_application(application_of(identity)), {}, lambda _: None, no_rows, guest)

    def _of_worker(self, line: WorkerLine) -> dict[type[Request[Any]], Callable[[Any], Any]]:
        async def enrolled(asked: ask.Enroll) -> Done:
            try:
                await self._lines.admit(line, asked)
            except SettingError as error:
                _LOG.warning("%s", error)
                raise
            done = self._done(lambda: self.core.workers.enroll(asked, time.monotonic()))
            _LOG.info("worker %s is there, at %s", asked.worker, asked.address)
            self._tell()
            return done

        def enroll(asked: ask.Enroll) -> asyncio.Task[Done]:
            if asked.worker != line.worker or not asked.lineage:
                raise AuthenticationError(f"{line.worker} can't enroll as {asked.worker}, {asked.lineage}")
            task = asyncio.ensure_future(enrolled(asked))
            self._enrolling.add(task)
            task.add_done_callback(self._enrolling.discard)
            return task

        def beat(asked: ask.Beat) -> ask.Orders:
            self._lines.beats(line)
            orders = self._kept.freed(lambda: self.core.workers.beat(line.worker, asked, time.monotonic()))
            return ask.Orders() if self._kept.has_failed else replace(orders, word=self._word())

        return {ask.Enroll: enroll, ask.Beat: beat}

    def _of_application(self, name: str) -> dict[type[Request[Any]], Callable[[Any], Any]]:
        core, done, freed, now = self.core, self._done, self._freed, time.monotonic
        return {
            ask.NamePartition: lambda asked: done(lambda: core.name(name, asked, now())),
            ask.StartPartition: lambda asked: self._begin(name, asked),
            ask.MoveFiles: lambda asked: self._move(name, asked),
            ask.FinishPartition: lambda asked: done(lambda: core.finish(name, asked)),
            ask.FailPartition: lambda asked: freed(lambda: core.fail(name, asked)),
            ask.FindPartitions: lambda asked: self._granted(name, core.find(name, asked, now())),
            ask.KeepResult: lambda asked: done(lambda: core.names.keep(name, asked, now())),
            ask.FindResult: lambda asked: core.names.find(name, asked.name, now()),
            ask.ListOfHost: lambda asked: core.held(name, asked),
            ask.DropPartitions: lambda asked: freed(lambda: core.release(name, asked.partitions)),
            ask.EndJob: lambda asked: freed(lambda: core.end_job(name, asked.job)),
            ask.CloseApplication: lambda _: freed(lambda: core.end_application(name)),
            ask.WatchLosses: lambda asked: self._watch(name, asked.last),
            ask.Suspect: lambda asked: self._suspect(name, asked),
        }

    def _begin(self, application: str, asked: ask.StartPartition) -> ask.Located:
        located = self._kept.decided(lambda: self.core.begin(application, asked, time.monotonic()))
        return replace(located, word=self._word())

    def _word(self) -> bytes:
        """The word about the log as it is on the disk; none where it can't be written."""
        return b"" if self._kept.has_failed else sealed_word(self._access.secret, self.core.state.history)

    def _granted(self, application: str, found: ask.Stories) -> ask.Stories:
        """Let the user of this application read what another one has kept, at the workers too."""
        located = {
            dataset: replace(each, grant=self._access.grant(application, each.owner, dataset)) if each.owner else each
            for dataset, each in found.located.items()
        }
        return replace(found, located=located)

    def _done(self, decide: Callable[[], None]) -> Done:
        self._kept.decided(decide)
        return Done()

    def _freed(self, decide: Callable[[], None]) -> Done:
        self._kept.freed(decide)
        return Done()

    def _watch(self, application: str, last: int) -> Any:
        found = self.core.losses(application, last, time.monotonic())
        if found is not None:
            return found
        waiting = self._watching.setdefault(application, [])
        if len(waiting) >= _MOST_WATCHING:
            return ask.Losses(last)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ask.Losses] = loop.create_future()
        waiting.append((last, future))

        def nothing() -> None:
            if not future.done():
                future.set_result(ask.Losses(last))

        loop.call_later(_WATCH_SECONDS, nothing)
        return future

    def _tell(self) -> None:
        """Tell drivers that wait what was lost."""
        for application, waiting in list(self._watching.items()):
            left = []
            for last, future in waiting:
                if future.done():
                    continue
                found = self.core.losses_since(application, last)
                if found is not None:
                    future.set_result(found)
                else:
                    left.append((last, future))
            if left:
                self._watching[application] = left
            else:
                del self._watching[application]

    def _move(self, application: str, asked: ask.MoveFiles) -> ask.Located:
        located = self._kept.decided(lambda: self.core.move(application, asked, time.monotonic()))
        self._look(asked.worker, asked.cause)
        return replace(located, word=self._word())

    def _suspect(self, application: str, asked: ask.Suspect) -> Done:
        self.core.workers.sights.avoid(application, asked.worker, asked.cause, time.monotonic())
        self._look(asked.worker, asked.cause)
        return Done()

    def _look(self, worker: str, cause: str) -> None:
        """Look whether a worker is still there; once at a time."""
        if worker not in self._looks and not self._has_ended:
            look = self._looks[worker] = asyncio.ensure_future(self._looked(worker, cause))
            look.add_done_callback(lambda _: self._looks.pop(worker, None))

    async def _looked(self, worker: str, cause: str) -> None:
        for pause in _LOOKS:
            await asyncio.sleep(pause)
            known = self.core.state.workers.get(worker)
            if known is None:
                return
            if not await nobody_listens(self._access.protection.towards(known.address), known.address):
                continue
            if await self._comes_back(worker, cause):
                return
            _LOG.warning("worker %s at %s is lost: %s", worker, known.address, cause)
            why = f"nobody listens there any more ({cause})"
            self._kept.freed(functools.partial(self.core.workers.lose, worker, why))
            self._tell()

    async def _comes_back(self, worker: str, cause: str) -> bool:
        """Wait for a worker at whose address nothing listens; False if it stays away."""
        gone = time.monotonic()
        self.core.workers.sights.miss(worker, f"nobody listens at its address ({cause})")
        while self.core.workers.sights.heard(worker) <= gone:
            if time.monotonic() - gone > self._options.limits.rejoin:
                return False
            await asyncio.sleep(_REJOIN_LOOK_SECONDS)
        return True
