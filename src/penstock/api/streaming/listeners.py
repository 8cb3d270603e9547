# SPDX-License-Identifier: Apache-2.0
"""The listeners to the queries of a SparkContext: PySpark's `StreamingQueryListener` objects, called by us.

Rules: listeners are called one after the other, each event to those that were there when it happened, on a thread of
their own that lives as long as there is something to tell. So one that is slow, that stops its query or that raises
holds no query up. If they are a hundred events behind, further progress is not told; starts and ends always are.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

_LOG = logging.getLogger(__name__)

STARTED = "onQueryStarted"
PROGRESS = "onQueryProgress"
IDLE = "onQueryIdle"
TERMINATED = "onQueryTerminated"
_MOST_BEHIND = 100


class Listeners:
    """The listeners of one SparkContext. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Any] = []
        self._events: deque[tuple[str, Mapping[str, Any], tuple[Any, ...]]] = deque()
        self._is_telling = False

    def add(self, listener: Any) -> None:
        """It hears of what happens from now on; raises TypeError for what is no listener."""
        if isinstance(listener, type) or not callable(getattr(listener, PROGRESS, None)):
            raise TypeError(
                "addListener takes an object of a class derived from pyspark.sql.streaming.StreamingQueryListener, "
                f"not {listener!r}"
            )
        with self._lock:
            if not any(each is listener for each in self._listeners):
                self._listeners.append(listener)

    def remove(self, listener: Any) -> None:
        """It hears of nothing that happens from now on; one that was not added is ignored."""
        with self._lock:
            self._listeners = [each for each in self._listeners if each is not listener]

    def tell(self, word: str, said: Mapping[str, Any]) -> None:
        """An event, in PySpark's words of it; never waits."""
        with self._lock:
            if not self._listeners or (word == PROGRESS and len(self._events) >= _MOST_BEHIND):
                return
            self._events.append((word, said, tuple(self._listeners)))
            if self._is_telling:
                return
            self._is_telling = True
        threading.Thread(target=self._tell_all, name="penstock-query-listeners", daemon=True).start()

    def _tell_all(self) -> None:
        from penstock.spark.query_events import query_event

        while True:
            with self._lock:
                if not self._events:
                    self._is_telling = False
                    return
                word, said, listeners = self._events.popleft()
            for listener in listeners:
                try:
                    hears = getattr(listener, word, None)
                    if hears is not None:
                        hears(query_event(word, said))
                except BaseException:  # noqa: BLE001 - it is the user's, who may call sys.exit(): no query depends on it
                    _LOG.warning("%s of a query's listener failed", word, exc_info=True)
