# SPDX-License-Identifier: Apache-2.0
"""Carries out what the core decides for the checkpoints of streaming queries.

All but the storing runs on the JobMaster's event loop. Each query has a thread that stores its checkpoints one after
the other, so a location that is slow or away holds up only its own query's checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import assert_never

from penstock.checkpoint.errors import CheckpointError, FencedError, UncertainCheckpointError
from penstock.graph.streaming import SavedParts
from penstock.job.core import events
from penstock.job.core import instructions as do
from penstock.job.query_storage import QueryStorage
from penstock.job.shell.calls import Calls

_LOG = logging.getLogger(__name__)

Handle = Callable[[events.Event], None]


class Queries:
    """The queries of one JobMaster."""

    def __init__(self, handle: Handle, calls: Calls) -> None:
        self._handle = handle
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._stores: dict[str, _Store] = {}
        self._stopping: set[str] = set()
        self._ending: dict[str, Callable[[], None]] = {}
        """Of jobs that are over what is to be done when a last word on them is written."""

    def carry_out(self, instruction: do.ForQuery) -> None:
        """Do what the core has decided on a query's checkpoints."""
        match instruction:
            case do.StoreCheckpoint(job, saved):
                self._stores[job].store(saved)
            case do.LookWhoOwns(job):
                self._stores[job].look()
            case do.DiscardCheckpoint(job, checkpoint):
                self._put(job, lambda storage: storage.discard(checkpoint))
            case do.DiscardPart(job, handle):
                self._put(job, lambda storage: storage.discard_part(handle))
            case do.DiscardLogs(job, before):
                self._put(job, lambda storage: storage.discard_logs(before))
            case do.AnswerCheckpoint(_, call, number, cause):
                self._calls.answer(call, CheckpointError(cause) if number is None else number)
            case do.WarnOfCheckpoint(job, checkpoint, instead, cause):
                damaged = f"checkpoint {checkpoint} of {job} can't be restored from"
                _LOG.warning("%s, checkpoint %s is taken: %s", damaged, instead, cause)
            case _:
                assert_never(instruction)

    def open(self, job: str, storage: QueryStorage) -> None:
        """A query is going to be submitted."""
        self._stores[job] = _Store(job, storage, self._later)

    def stopping(self, job: str) -> None:
        """A query is told to stop: when it ends it has not finished, and a later start may go on."""
        if job in self._stores:
            self._stopping.add(job)

    def end(self, job: str, then: Callable[[], None], *, is_well: bool = False) -> None:
        """A job is over; what is still to be stored or removed of it will be.

        `then` is called at once. For a query whose tasks have all done their work it is called when that is written.
        """
        store = self._stores.pop(job, None)
        is_finished = is_well and job not in self._stopping
        self._stopping.discard(job)
        if store is None or not is_finished:
            then()
        else:
            self._ending[job] = then
            store.finish(lambda: self._soon(lambda: self._settle(job)))
        if store is not None:
            store.close()

    def close(self) -> None:
        """Give everything up."""
        for job in list(self._stores):
            self.end(job, lambda: None)
        for job in list(self._ending):
            self._settle(job)

    def _settle(self, job: str) -> None:
        then = self._ending.pop(job, None)
        if then is not None:
            then()

    async def checkpoint(self, job: str) -> int:
        """A checkpoint, now: its number; raises CheckpointError where there is none."""
        call = self._calls.open()
        self._handle(events.CheckpointAsked(call, job))
        answer = await self._calls.wait(call)
        if not isinstance(answer, int):
            raise CheckpointError(f"there is no checkpoint: {answer!r}")
        return answer

    def _later(self, event: events.Event) -> None:
        self._soon(lambda: self._handle(event))

    def _soon(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:  # the loop is closed, so the query has been given up
            _LOG.debug("the word of a thread came after the JobMaster closed")

    def _put(self, job: str, work: Callable[[QueryStorage], None]) -> None:
        """In its turn; what is over removes nothing more."""
        if job in self._stores:
            self._stores[job].put(work)


class _Store:
    """The thread of one query."""

    def __init__(self, job: str, storage: QueryStorage, later: Handle) -> None:
        self._job = job
        self._storage = storage
        self._later = later
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"penstock-{job}-checkpoints", daemon=True)
        self._thread.start()

    def store(self, saved: SavedParts) -> None:
        """Store a checkpoint, and say how it went."""
        self._work.put(lambda: self._later(self._stored(saved)))
        self._work.put(self._storage.sweep)

    def look(self) -> None:
        """Look who owns the location, and say so."""
        self._work.put(lambda: self._later(self._seen()))

    def put(self, work: Callable[[QueryStorage], None]) -> None:
        """Do this when its turn comes; the log tells where it failed."""
        self._work.put(lambda: work(self._storage))

    def finish(self, then: Callable[[], None]) -> None:
        """Write that all tasks are done, and say when that was tried."""

        def work() -> None:
            try:
                self._storage.finish()
            finally:
                then()

        self._work.put(work)

    def close(self) -> None:
        """Do what is still to be done, and end."""
        self._work.put(self._end)
        self._work.put(None)

    def _end(self) -> None:
        try:
            self._storage.end()
        except FencedError as error:  # the location went with its query, or the next owner tidies it up
            _LOG.debug("nothing of the checkpoints of %s is removed at its end: %s", self._job, error)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except FencedError as error:  # it may complete no checkpoint by which it would hear of that
                self._later(events.OwnerSeen(self._job, str(error), FencedError))
            except Exception as error:  # noqa: BLE001 - what is not removed now is when the location is claimed next
                _LOG.warning("the checkpoints of %s could not be tidied up: %s", self._job, error)

    def _seen(self) -> events.Event:
        try:
            self._storage.check()
        except FencedError as error:
            return events.OwnerSeen(self._job, str(error), FencedError)
        except Exception as error:  # noqa: BLE001 - a location that is away names no other owner
            _LOG.warning("the checkpoint location of %s can't be looked at: %s", self._job, error)
        return events.OwnerSeen(self._job)

    def _stored(self, saved: SavedParts) -> events.Event:
        number = saved.checkpoint
        try:
            self._storage.store(saved)
        except (FencedError, UncertainCheckpointError) as error:
            return events.CheckpointStoreFailed(self._job, number, str(error), type(error))
        except Exception as error:  # noqa: BLE001 - whatever the file system raises fails this checkpoint
            return events.CheckpointStoreFailed(self._job, number, f"{type(error).__name__}: {error}")
        return events.CheckpointStored(self._job, number)
