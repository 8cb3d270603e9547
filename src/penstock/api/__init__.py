# SPDX-License-Identifier: Apache-2.0
"""The words that users write: streams, keyed streams, readers, and the drop-in verbs over DataFrames.

A name's module is imported when the name is first used: the first job of a session waits for all that is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.api.batch_processor import BatchProcessor
    from penstock.api.functions import GroupedDataFrame, fromDataFrame, groupBy, repartition
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.persisted import datasets
    from penstock.api.readers import (
        readCsv,
        readDelta,
        readIceberg,
        readJson,
        readKafka,
        readParquet,
        readPersisted,
        readText,
    )
    from penstock.api.session_start import preloading
    from penstock.api.stream import Stream
    from penstock.api.streaming.latest import latestRows
    from penstock.api.streaming.queries import streams
    from penstock.api.streaming.query import StreamingQuery
    from penstock.api.streaming.reader import readStream
    from penstock.api.web import performanceReport, webPage
    from penstock.api.windows import session_window, window

__all__ = [
    "BatchProcessor",
    "GroupedDataFrame",
    "KeyedStream",
    "Stream",
    "StreamingQuery",
    "datasets",
    "fromDataFrame",
    "groupBy",
    "latestRows",
    "performanceReport",
    "preloading",
    "readCsv",
    "readDelta",
    "readIceberg",
    "readJson",
    "readKafka",
    "readParquet",
    "readPersisted",
    "readStream",
    "readText",
    "repartition",
    "session_window",
    "streams",
    "webPage",
    "window",
]

_MODULES = {
    "batch_processor": ("BatchProcessor",),
    "functions": ("GroupedDataFrame", "fromDataFrame", "groupBy", "repartition"),
    "keyed_stream": ("KeyedStream",),
    "persisted": ("datasets",),
    "readers": (
        "readCsv",
        "readDelta",
        "readIceberg",
        "readJson",
        "readKafka",
        "readParquet",
        "readPersisted",
        "readText",
    ),
    "session_start": ("preloading",),
    "stream": ("Stream",),
    "streaming.latest": ("latestRows",),
    "streaming.queries": ("streams",),
    "streaming.query": ("StreamingQuery",),
    "streaming.reader": ("readStream",),
    "web": ("performanceReport", "webPage"),
    "windows": ("session_window", "window"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
