# SPDX-License-Identifier: Apache-2.0
"""Writes parts of checkpoints that this host's tasks hand over, several into one file, and acknowledges them.

`host_files` decides which part goes where. Each file has a thread that waits for the storage; the loop never does. A
storage that hangs does not delay the environment's end, which waits for none of these threads. If a file can't be
written, the tasks of its parts are told why, and decline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.checkpoint.metadata import PartHandle, pack_part, unpack_part
from penstock.checkpoint.part_memory import copy, open_memory
from penstock.environment.tasks.host_files import Append, Decision, FileId, HostFiles, Seal
from penstock.link.calls import HandedOver, HandOverPart, ShareFiles
from penstock.link.master import AcknowledgeCheckpoint
from penstock.shuffle import AttemptId

WAIT_SECONDS: Final = 10.0
"""A file that has waited so long for a further part gets none: a task here does not say what becomes of its own."""


@dataclass(slots=True)
class _Part:
    """One that was handed over. `base` is its place in the file, when it is there, `cause` why it is not."""

    source: int
    size: int
    stored: asyncio.Future[None]
    base: int = 0
    cause: str = ""


@dataclass(slots=True)
class _File:
    """One file; all but `queue` is its thread's until `done` is called."""

    id: FileId
    name: str
    done: Callable[[_File], None]
    queue: queue.SimpleQueue[_Part | None] = field(default_factory=queue.SimpleQueue)
    parts: list[_Part] = field(default_factory=list)
    path: str = ""
    size: int = 0
    _is_complete: bool = False

    def run(self) -> None:
        """Write what comes until nothing more does."""
        # Not above: an environment starts without Arrow, and needs it nowhere else.
        from penstock.checkpoint.stamps import Stamp
        from penstock.checkpoint.storage import PartStorage

        location, owner = self.id.query
        cause = ""
        try:
            with PartStorage(location).open(Stamp.by(owner, self.id.checkpoint), self.name) as file:
                self.path = file.path
                while (part := self._next()) is not None:
                    part.base = file.size
                    try:
                        copy(part.source, part.size, file)
                    except EOFError as error:
                        part.cause = str(error)
                self.size = file.size
        except Exception as error:  # noqa: BLE001 - each task of the file is told
            cause = f"the environment process of its host could not write: {type(error).__name__}: {error}"
            while not self._is_complete:
                self._next()
        for part in self.parts:
            part.cause = part.cause or cause
            os.close(part.source)
        self.done(self)

    def _next(self) -> _Part | None:
        part = self.queue.get()
        if part is None:
            self._is_complete = True
        else:
            self.parts.append(part)
        return part


class CheckpointFiles:
    """Those of one environment. `ask` tells the JobMaster, `environment` is the name in the names of its files."""

    def __init__(self, environment: str, ask: Callable[[Any], Awaitable[object]]) -> None:
        self._environment = environment
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._core = HostFiles()
        self._files: dict[FileId, _File] = {}
        """Those to which parts may still come."""
        self._timers: dict[FileId, asyncio.TimerHandle] = {}
        self._is_warm = False

    def join(self, request: ShareFiles) -> None:
        """A task of a query takes part in checkpoints here."""
        self._core.joined(request.attempt, (request.location, request.owner))
        if not self._is_warm:
            self._is_warm = True
            threading.Thread(target=_load, name="penstock-load", daemon=True).start()

    def hand_over(self, request: HandOverPart, pid: int) -> HandedOver | Awaitable[HandedOver]:
        """Store the part that a task of this process has in memory, and acknowledge it; raises what that raises."""
        handle = unpack_part(request.handle)
        try:
            source = open_memory(pid, request.memory)
        except OSError as error:
            self.settled(request.attempt, request.checkpoint)
            return HandedOver(f"the environment process of its host can't read its memory: {error}")
        part = _Part(source, handle.size, self._loop.create_future())
        query = (request.location, request.owner)
        decisions = self._core.handed_over(request.attempt, query, request.checkpoint, handle.size)
        return self._stored(request, handle, part, self._carry_out(decisions, part))

    async def _stored(self, request: HandOverPart, handle: PartHandle, part: _Part, file: _File | None) -> HandedOver:
        began = self._loop.time()
        await part.stored
        if part.cause or file is None:
            return HandedOver(part.cause)
        chunks = (each if each.file else replace(each, offset=part.base + each.offset) for each in handle.chunks)
        placed = replace(handle, path=file.path, size=file.size, chunks=tuple(chunks))
        figures = {**request.figures, "bytes": float(placed.bytes), "store_seconds": self._loop.time() - began}
        await self._ask(AcknowledgeCheckpoint(request.attempt, request.checkpoint, pack_part(placed), figures))
        return HandedOver()

    def settled(self, attempt: AttemptId, checkpoint: int) -> None:
        """A task has acknowledged or declined a checkpoint by itself."""
        self._carry_out(self._core.settled(attempt, checkpoint))

    def given_up(self, attempt: AttemptId, checkpoint: int) -> None:
        """A task is told that nothing comes of a checkpoint."""
        self._carry_out(self._core.given_up(attempt, checkpoint))

    def left(self, attempt: AttemptId) -> None:
        """A task takes part in no further checkpoint."""
        self._carry_out(self._core.left(attempt))

    def close(self) -> None:
        """Take nothing more; what is under way is left to its end. Idempotent."""
        for file in list(self._files):
            self._complete(file)

    def _carry_out(self, decisions: Iterable[Decision], part: _Part | None = None) -> _File | None:
        """Do as was decided; the file of the part that has come."""
        found = None
        for decision in decisions:
            if isinstance(decision, Append) and part is not None:
                found = self._file(decision.file)
                found.queue.put(part)
            elif isinstance(decision, Seal):
                self._complete(decision.file)
        return found

    def _file(self, file: FileId) -> _File:
        if file not in self._files:
            opened = _File(file, f"host-{self._environment}.{file.number}", self._done)
            self._files[file] = opened
            threading.Thread(target=opened.run, name=f"penstock-{opened.name}", daemon=True).start()
        self._wait_for_more(file)
        return self._files[file]

    def _wait_for_more(self, file: FileId) -> None:
        if file in self._timers:
            self._timers.pop(file).cancel()
        self._timers[file] = self._loop.call_later(WAIT_SECONDS, self._waited_long, file)

    def _waited_long(self, file: FileId) -> None:
        self._carry_out(self._core.waited_long(file))

    def _complete(self, file: FileId) -> None:
        self._timers.pop(file).cancel()
        self._files.pop(file).queue.put(None)

    def _done(self, file: _File) -> None:
        """Called by the file's thread."""
        with contextlib.suppress(RuntimeError):  # the environment has ended meanwhile
            self._loop.call_soon_threadsafe(_tell, file.parts)


def _tell(parts: Iterable[_Part]) -> None:
    for part in parts:
        if not part.stored.done():
            part.stored.set_result(None)


def _load() -> None:
    """Load what writes files now, and not while the first checkpoint waits."""
    import penstock.checkpoint.storage  # noqa: F401
