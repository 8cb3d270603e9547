# SPDX-License-Identifier: Apache-2.0
"""A thread in which synchronous code speaks with its peers: one event loop, as long as it is needed.

A task or a client is synchronous code, and connections are an event loop's. Rows and words between the two go through
queues; a `waker` of its host ends the task's wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.errors import ControlError

A = TypeVar("A")

_LOOK_SECONDS = 0.2
_END_SECONDS = 5.0


class LoopThread:
    """The thread and its loop; begun by the first call."""

    def __init__(self, name: str, at_end: Callable[[], None]) -> None:
        self._name = name
        self._at_end = at_end
        """Called in the loop when nothing runs there any more."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs."""
        with self._lock:
            if self._is_closed:
                raise ControlError("what is asked for here was closed already")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    @property
    def is_running(self) -> bool:
        """True between the first call and `close`."""
        return self._loop is not None and not self._is_closed

    def begin(self, coroutine: Coroutine[Any, Any, A]) -> concurrent.futures.Future[A]:
        """Run this there."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except ControlError:
            coroutine.close()
            raise

    def call(self, coroutine: Coroutine[Any, Any, A], check: Callable[[], object] = lambda: None) -> A:
        """Run this there, and wait for it; what `check` raises meanwhile ends the wait."""
        future = self.begin(coroutine)
        while True:
            try:
                return future.result(_LOOK_SECONDS)
            except concurrent.futures.TimeoutError:
                if future.done():
                    raise
                try:
                    check()
                except BaseException:
                    future.cancel()
                    raise

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call this there; nothing where it is closed."""
        with self._lock:
            if self._loop is not None and not self._is_closed:
                self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Cancel what runs there, and end; idempotent."""
        with self._lock:
            loop, thread = self._loop, self._thread
            was_closed, self._is_closed = self._is_closed, True
        if loop is None or thread is None or was_closed:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_END_SECONDS)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.call_soon(self._at_end)
            loop.run_until_complete(asyncio.sleep(0))
        finally:
            loop.close()
