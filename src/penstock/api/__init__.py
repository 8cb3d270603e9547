# SPDX-License-Identifier: Apache-2.0
"""The names that users write: verbs, and the classes of what these give.

A name's module is imported when the name is first used: the first job of a session waits for all that is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.api.batch_processor import BatchProcessor
    from penstock.api.file_sink import FilesWritten
    from penstock.api.functions import CoGroupedDataFrame, GroupedDataFrame, fromDataFrame, groupBy, repartition
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.pairs import CoGroupedStream
    from penstock.api.persisted import DatasetInfo, datasets
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
    from penstock.api.streaming.queries import StreamingQueries, streams
    from penstock.api.streaming.query import StreamingQuery
    from penstock.api.streaming.reader import StreamReader, readStream
    from penstock.api.streaming.writer import StreamWriter
    from penstock.api.web import performanceReport, webPage
    from penstock.api.windows import WindowedStream, session_window, window
    from penstock.job.core.result import JobResult
    from penstock.web.page import WebPage

__all__ = [
    "BatchProcessor",
    "CoGroupedDataFrame",
    "CoGroupedStream",
    "DatasetInfo",
    "FilesWritten",
    "GroupedDataFrame",
    "JobResult",
    "KeyedStream",
    "Stream",
    "StreamReader",
    "StreamWriter",
    "StreamingQueries",
    "StreamingQuery",
    "WebPage",
    "WindowedStream",
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
    "api.batch_processor": ("BatchProcessor",),
    "api.file_sink": ("FilesWritten",),
    "api.functions": ("CoGroupedDataFrame", "GroupedDataFrame", "fromDataFrame", "groupBy", "repartition"),
    "api.keyed_stream": ("KeyedStream",),
    "api.pairs": ("CoGroupedStream",),
    "api.persisted": ("DatasetInfo", "datasets"),
    "api.readers": (
        "readCsv",
        "readDelta",
        "readIceberg",
        "readJson",
        "readKafka",
        "readParquet",
        "readPersisted",
        "readText",
    ),
    "api.session_start": ("preloading",),
    "api.stream": ("Stream",),
    "api.streaming.latest": ("latestRows",),
    "api.streaming.queries": ("StreamingQueries", "streams"),
    "api.streaming.query": ("StreamingQuery",),
    "api.streaming.reader": ("StreamReader", "readStream"),
    "api.streaming.writer": ("StreamWriter",),
    "api.web": ("performanceReport", "webPage"),
    "api.windows": ("WindowedStream", "session_window", "window"),
    "job.core.result": ("JobResult",),
    "web.page": ("WebPage",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _PLACES:
        return getattr(import_module(f"penstock.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
