# SPDX-License-Identifier: Apache-2.0
"""Penstock: a pluggable data-exchange service for PySpark pipelines.

The public names are found on first use, because every task and environment process imports this package and few
of them need the whole of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock import errors

if TYPE_CHECKING:
    from penstock.api import (
        BatchProcessor,
        CoGroupedDataFrame,
        CoGroupedStream,
        DatasetInfo,
        FilesWritten,
        GroupedDataFrame,
        JobResult,
        KeyedStream,
        Stream,
        StreamingQueries,
        StreamingQuery,
        StreamReader,
        StreamWriter,
        WebPage,
        WindowedStream,
        datasets,
        fromDataFrame,
        groupBy,
        latestRows,
        performanceReport,
        preloading,
        readCsv,
        readDelta,
        readIceberg,
        readJson,
        readKafka,
        readParquet,
        readPersisted,
        readStream,
        readText,
        repartition,
        session_window,
        streams,
        webPage,
        window,
    )
    from penstock.islands import accelerate, accelerated, acceleration, explain

__version__ = errors.VERSION

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
    "accelerate",
    "accelerated",
    "acceleration",
    "datasets",
    "explain",
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

_OF_ACCELERATION = ("accelerate", "accelerated", "acceleration", "explain")


def __getattr__(name: str) -> object:
    if name in _OF_ACCELERATION:
        return getattr(import_module("penstock.islands"), name)
    if name in __all__:
        from penstock import api

        return getattr(api, name)
    hint = ""
    if not name.startswith("_"):
        like = [known for known in __all__ if known.lower().startswith(name.lower())]
        hint = f": did you mean {' or '.join(like)}?" if like else f": there are {', '.join(__all__)}"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
