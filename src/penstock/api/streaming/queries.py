# SPDX-License-Identifier: Apache-2.0
"""`penstock.streams(spark)`: the queries of a SparkContext, those that run and the end of the one that ended last."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.api.habits import INSTEAD_OF_QUERIES, missing_step
from penstock.api.known_arguments import suggests_arguments
from penstock.api.streaming.listeners import Listeners
from penstock.api.streaming.query import StreamingQuery
from penstock.errors import SettingError

if TYPE_CHECKING:
    from penstock.spark.user_types import SparkSession

_WAIT_SECONDS = 0.25
"""Waits are short: one without a limit in the main thread would keep Ctrl-C from getting through."""


class StreamingQueries:
    """The queries of one SparkContext: `penstock.streams(spark)`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = threading.Condition(self._lock)
        self._queries: list[StreamingQuery] = []
        self._ended: StreamingQuery | None = None
        """One that has ended since the begin, or since `resetTerminated`; the first that failed, if any has."""
        self._listeners = Listeners()

    @property
    def active(self) -> list[StreamingQuery]:
        """The queries that run."""
        with self._lock:
            for query in self._queries:
                if not query.isActive and (self._ended is None or self._ended.exception() is None):
                    self._ended = query
            self._queries = [query for query in self._queries if query.isActive]
            return list(self._queries)

    def get(self, id: str) -> StreamingQuery | None:  # noqa: A002 - PySpark's name
        """The query with this id that runs."""
        return next((query for query in self.active if query.id == id), None)

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until one of them has ended since the begin, or since `resetTerminated`; raises what ended it.

        With a `timeout` in seconds: whether one has by then. It returns at once where one has ended already.
        """
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            running, ended = self.active, self._ended
            if ended is not None:
                break
            left = min(until - time.monotonic(), _WAIT_SECONDS)
            if left <= 0:
                return False
            if running:
                running[0].wait_end(left)
            else:
                with self._started:
                    self._started.wait(left)
        error = ended.exception()
        if error is not None:
            raise error
        return True if timeout is not None else None

    def resetTerminated(self) -> None:
        """Forget those that have ended, so that `awaitAnyTermination` waits for the next one."""
        self.active  # noqa: B018 - notes those that have ended
        self._ended = None

    def addListener(self, listener: Any) -> None:
        """A `pyspark.sql.streaming.StreamingQueryListener` that hears of these queries from now on.

        It is called on a thread of its own, also for starts; what it raises is logged.
        """
        self._listeners.add(listener)

    def removeListener(self, listener: Any) -> None:
        """One that was added hears of nothing more."""
        self._listeners.remove(listener)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A sentence for what PySpark's users try."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise missing_step("penstock.streams(spark)", name, INSTEAD_OF_QUERIES, dir(self))

    def refuse_twice(self, id_: str, name: str | None) -> None:
        """Raise SettingError where a query with this id or this name runs."""
        for query in self.active:
            if query.id == id_:
                raise SettingError(
                    f"query {query.name or id_} runs already with this checkpointLocation: stop it first"
                )
            if name is not None and query.name == name:
                raise SettingError(f"a query of the name {name!r} runs already: stop it first, or use another name")

    def tell(self, word: str, said: Mapping[str, Any]) -> None:
        """Something happened to one of them: tell the listeners."""
        self._listeners.tell(word, said)

    def add(self, query: StreamingQuery) -> None:
        """Take in a query that was started."""
        with self._lock:
            self._queries.append(query)
            self._started.notify_all()


_known: weakref.WeakKeyDictionary[Any, StreamingQueries] = weakref.WeakKeyDictionary()


@suggests_arguments
def streams(spark: SparkSession) -> StreamingQueries:
    """The streaming queries of a session's SparkContext, as PySpark's `spark.streams`."""
    if not hasattr(spark, "sparkContext"):
        raise TypeError(f"streams takes a SparkSession, not {type(spark).__name__}: penstock.streams(spark)")
    return _known.setdefault(spark.sparkContext, StreamingQueries())
