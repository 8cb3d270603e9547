# SPDX-License-Identifier: Apache-2.0
"""The part of a host's environment in the checkpoints of its tasks, on an event loop of the test's process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.environment.tasks.checkpoint_files import CheckpointFiles
from penstock.link.calls import HandOverPart, ShareFiles
from penstock.link.master import AcknowledgeCheckpoint
from penstock.shuffle import AttemptId
from penstock.shuffle.streaming import HandedPart

Tell = Callable[[int, bytes, dict[str, float]], None]
"""Called with a checkpoint, the handle of a part and its figures, where that is stored."""


class LocalHost:
    """The files of one host; `store` makes a task's `HostStore`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="host", daemon=True)
        self._thread.start()
        self._tell: dict[AttemptId, Tell] = {}
        self.files = asyncio.run_coroutine_threadsafe(self._made(), self._loop).result()

    async def _made(self) -> CheckpointFiles:
        return CheckpointFiles("local", self._ask)

    async def _ask(self, request: AcknowledgeCheckpoint) -> None:
        self._tell[request.attempt](request.checkpoint, request.handle, request.figures)

    def store(self, attempt: AttemptId, acknowledged: Tell) -> LocalHostStore:
        """That of the task which works on this attempt."""
        self._tell[attempt] = acknowledged
        return LocalHostStore(self, attempt)

    def call(self, work: Callable[[], Any]) -> None:
        """Do something on the loop, after what was asked before; an answer that comes later is waited for there."""

        async def carried_out() -> None:
            answer = work()
            if isinstance(answer, Awaitable):
                await answer

        self._loop.call_soon_threadsafe(self._loop.create_task, carried_out())

    def close(self) -> None:
        """End."""
        self._loop.call_soon_threadsafe(self.files.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class LocalHostStore:
    """The `HostStore` of one task."""

    def __init__(self, host: LocalHost, attempt: AttemptId) -> None:
        self._host = host
        self._attempt = attempt

    def share_files(self, location: str, owner: str) -> None:
        """The task takes part."""
        self._host.call(lambda: self._host.files.join(ShareFiles(self._attempt, location, owner)))

    def settled(self, checkpoint: int) -> None:
        """The task speaks of its part by itself."""
        self._host.call(lambda: self._host.files.settled(self._attempt, checkpoint))

    def given_up(self, checkpoint: int) -> None:
        """The task is told that nothing comes of a checkpoint."""
        self._host.call(lambda: self._host.files.given_up(self._attempt, checkpoint))

    def hand_over(self, part: HandedPart, done: Callable[[str], None]) -> None:
        """Store and acknowledge."""
        request = HandOverPart(
            self._attempt, part.location, part.owner, part.checkpoint, part.memory, part.handle, dict(part.figures)
        )

        async def answered() -> None:
            answer = self._host.files.hand_over(request, os.getpid())
            done((await answer if isinstance(answer, Awaitable) else answer).cause)

        self._host.call(answered)

    def leave_files(self) -> None:
        """The task takes part no more."""
        self._host.call(lambda: self._host.files.left(self._attempt))
