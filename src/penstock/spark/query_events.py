# SPDX-License-Identifier: Apache-2.0
"""The events of a query as PySpark's, as a `StreamingQueryListener` gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming import listener as pyspark

_EVENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "onQueryStarted": pyspark.QueryStartedEvent.fromJson,
    "onQueryProgress": lambda said: pyspark.QueryProgressEvent.fromJson({"progress": said}),
    "onQueryIdle": pyspark.QueryIdleEvent.fromJson,
    "onQueryTerminated": pyspark.QueryTerminatedEvent.fromJson,
}


def query_event(word: str, said: Mapping[str, Any]) -> Any:
    """The event that the listener's method of this name takes."""
    return _EVENTS[word](dict(said))
