# SPDX-License-Identifier: Apache-2.0
"""What users write: streams, keyed streams, readers, and the drop-in verbs over DataFrames."""

from penstock.api.functions import (
    GroupedDataFrame,
    fromDataFrame,
    groupBy,
    readCsv,
    readDelta,
    readIceberg,
    readJson,
    readParquet,
    readText,
    repartition,
)
from penstock.api.keyed_stream import KeyedStream
from penstock.api.persisted import datasets
from penstock.api.stream import Stream
from penstock.api.streaming.query import StreamingQuery, streams
from penstock.api.streaming.reader import readStream

__all__ = [
    "GroupedDataFrame",
    "KeyedStream",
    "Stream",
    "StreamingQuery",
    "datasets",
    "fromDataFrame",
    "groupBy",
    "readCsv",
    "readDelta",
    "readIceberg",
    "readJson",
    "readParquet",
    "readStream",
    "readText",
    "repartition",
    "streams",
]
