# SPDX-License-Identifier: Apache-2.0
"""The JVM's threads that have called us, and the connections that py4j keeps for them.

py4j has a connection for each JVM thread that calls Python, and a thread of ours at its other end. It keeps both
until the session's end, also those of threads that have ended, and Spark plans each `toArrow` on a new one, and each
shuffle on one that idles for a minute. So each callback looks, the first time on its connection, which of the threads
before it have ended or idle, and closes what was kept for them. One that calls again gets a new connection.

Threads of the user that Spark calls back on have a connection that is the user's own, which py4j closes at the end of
his thread. But py4j files a connection twice on which a callback has called Java, and takes it out once: so it is
taken out after each callback.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError

_LOG = logging.getLogger(__name__)
_Method = TypeVar("_Method", bound=Callable[..., Any])
_IDLE_SECONDS = 2.0
"""A thread that has not called for so long, and waits for something, is not about to: it would find a closed door."""
_WAITS = ("WAITING", "TIMED_WAITING")

_here = threading.local()
"""Of each of our threads: who calls on it, once that has been looked at."""


@dataclass(eq=False, slots=True)
class _Caller:
    """A thread of the JVM, and its connection where that is kept for callbacks alone; Java's objects."""

    thread: Any = None
    connection: Any = None
    calls: int = 0
    last: float = field(default_factory=time.monotonic)

    @property
    def is_gone(self) -> bool:
        """Tell whether it has ended, or idles."""
        if not self.thread.isAlive():
            return True
        idles = not self.calls and time.monotonic() - self.last > _IDLE_SECONDS
        return idles and str(self.thread.getState()) in _WAITS


class CallbackThreads:
    """The callback threads of one JVM. Made by `of`."""

    _all: ClassVar[weakref.WeakKeyDictionary[Any, CallbackThreads]] = weakref.WeakKeyDictionary()

    def __init__(self, gateway: Any) -> None:
        self._current = gateway.jvm.java.lang.Thread.currentThread
        self._server = gateway.java_gateway_server
        self._own = gateway._gateway_client.get_thread_connection  # noqa: SLF001 - py4j has no public way
        self._connections = gateway._gateway_client.deque  # noqa: SLF001
        self._lock = threading.Lock()
        self._known: list[_Caller] = []

    @classmethod
    def of(cls, gateway: Any) -> CallbackThreads | None:
        """Those of this gateway's JVM; None where py4j keeps no connection for each thread."""
        if not isinstance(gateway, ClientServer):
            return None
        return cls._all.setdefault(gateway, cls(gateway))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around each callback: its JVM thread is remembered, and those that are gone are let go of."""
        caller = getattr(_here, "caller", None)
        if caller is None:
            caller = _here.caller = self._come()
        caller.calls += 1
        try:
            yield
        finally:
            caller.calls, caller.last = caller.calls - 1, time.monotonic()
            # While Java waits for our answer the connection is taken; its place is given back by who waits for Java.
            with suppress(ValueError):
                self._connections.remove(self._own())

    def _come(self) -> _Caller:
        try:
            client = self._server.getCallbackClient()
            connection = client.getPerThreadConnection()
            if connection is not None and connection.isInitiatedFromClient():
                self._close_gone(client)
                caller = _Caller(self._current(), connection)
                self._keep(caller)
                return caller
        except Py4JError as error:
            _LOG.debug("the threads of callbacks could not be looked at: %r", error)
        return _Caller()

    def _close_gone(self, client: Any) -> None:
        with self._lock:
            known, self._known = self._known, []  # so that two callbacks at once close nothing twice
        for caller in known:
            if caller.is_gone:
                client.connectionStopped(caller.connection)  # py4j keeps it no more
                caller.connection.shutdown()  # our thread reads the end of it, and ends
            else:
                self._keep(caller)

    def _keep(self, caller: _Caller) -> None:
        with self._lock:
            self._known.append(caller)


def called_by_java(method: _Method) -> _Method:
    """A method of an object that has `threads`."""

    @functools.wraps(method)
    def noted(self: Any, *arguments: Any) -> Any:
        with self.threads.call() if self.threads is not None else nullcontext():
            return method(self, *arguments)

    return noted  # type: ignore[return-value]
