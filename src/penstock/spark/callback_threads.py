# SPDX-License-Identifier: Apache-2.0
"""The JVM's threads that have called us, and the connections that py4j keeps for them.

py4j has a connection for each JVM thread that calls Python, and a thread of ours at its other end. It keeps both
until the session's end, also those of threads that have ended, and Spark plans each `toArrow` on a new one. So each
callback looks, the first time on its connection, which of the threads before it have ended, and closes what was kept
for them: no more are left than there were threads alive at the last callback.

Threads of the user that Spark calls back on have a connection that is the user's own: it is left alone.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable
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

    def note(self) -> None:
        """Each callback says so: its JVM thread is remembered, and those that have ended are let go of."""
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
    """A method of an object whose `threads` are told of each call."""

    @functools.wraps(method)
    def noted(self: Any, *arguments: Any) -> Any:
        if self.threads is not None:
            self.threads.note()
        return method(self, *arguments)

    return noted  # type: ignore[return-value]
