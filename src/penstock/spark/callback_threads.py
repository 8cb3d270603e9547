# SPDX-License-Identifier: Apache-2.0
"""The JVM's threads that have called us, and the connections that py4j keeps for them.

py4j has a connection for each JVM thread that calls Python, and a thread of ours at its other end. It keeps both
until the session's end, also those of threads that have ended, and Spark plans each `toArrow` on a new one. So each
callback looks, the first time on its connection, which of the threads before it have ended, and closes what was kept
for them: no more are left than there were threads alive at the last callback.

Threads of the user that Spark calls back on have a connection that is the user's own, which py4j closes at the end
of his thread. But py4j files a connection twice on which a callback has called Java, and takes it out once: so it is
taken out behind each callback.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, ClassVar, TypeVar

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError

_LOG = logging.getLogger(__name__)
_Method = TypeVar("_Method", bound=Callable[..., Any])
_seen = threading.local()
"""Of each of our threads: whether it has been looked at."""


class CallbackThreads:
    """Those of one JVM. Made by `of`."""

    _all: ClassVar[weakref.WeakKeyDictionary[Any, CallbackThreads]] = weakref.WeakKeyDictionary()

    def __init__(self, gateway: Any) -> None:
        self._current = gateway.jvm.java.lang.Thread.currentThread
        self._server = gateway.java_gateway_server
        self._own = gateway._gateway_client.get_thread_connection  # noqa: SLF001 - py4j has no public way
        self._connections = gateway._gateway_client.deque  # noqa: SLF001
        self._lock = threading.Lock()
        self._known: list[tuple[Any, Any]] = []
        """Java's objects of threads, and of their connections."""

    @classmethod
    def of(cls, gateway: Any) -> CallbackThreads | None:
        """Those of this gateway's JVM; None where py4j keeps no connection for each thread."""
        if not isinstance(gateway, ClientServer):
            return None
        return cls._all.setdefault(gateway, cls(gateway))

    def __len__(self) -> int:
        """How many have called, and had not ended when this was last looked at."""
        return len(self._known)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around each callback: its JVM thread is remembered, and those that have ended are let go of."""
        self._note()
        try:
            yield
        finally:
            # While Java waits for our answer the connection is taken; its place is given back by who waits for Java.
            with suppress(ValueError):
                self._connections.remove(self._own())

    def _note(self) -> None:
        if getattr(_seen, "is_known", False):
            return
        _seen.is_known = True
        try:
            client = self._server.getCallbackClient()
            connection = client.getPerThreadConnection()
            if connection is not None and connection.isInitiatedFromClient():
                self._close_ended(client)
                self._keep(self._current(), connection)
        except Py4JError as error:
            _LOG.debug("the threads of callbacks could not be looked at: %r", error)

    def _close_ended(self, client: Any) -> None:
        with self._lock:
            known, self._known = self._known, []  # so that two callbacks at once close nothing twice
        for thread, connection in known:
            if thread.isAlive():
                self._keep(thread, connection)
            else:
                client.connectionStopped(connection)  # py4j keeps it no more
                connection.shutdown()  # our thread reads the end of it, and ends

    def _keep(self, thread: Any, connection: Any) -> None:
        with self._lock:
            self._known.append((thread, connection))


def called_by_java(method: _Method) -> _Method:
    """A method of an object that has `threads`."""

    @functools.wraps(method)
    def noted(self: Any, *arguments: Any) -> Any:
        with self.threads.call() if self.threads is not None else nullcontext():
            return method(self, *arguments)

    return noted  # type: ignore[return-value]
