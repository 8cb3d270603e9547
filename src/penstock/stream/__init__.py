# SPDX-License-Identifier: Apache-2.0
"""The task of a streaming query: its loop, operators as steps with state, sources and sinks.

A task waits in one place; it takes barriers through its operators and stores their states while it goes on. Nothing
here knows Spark, sockets or processes.
"""

from penstock.stream.runner import StreamTaskPlan, run_stream_subtask
from penstock.stream.sinks import SinkOperator, SinkWriter, StreamSink
from penstock.stream.sources import SourceReader, StreamSource
from penstock.stream.steps import StreamOperator, check, step_of

__all__ = [
    "SinkOperator",
    "SinkWriter",
    "SourceReader",
    "StreamOperator",
    "StreamSink",
    "StreamSource",
    "StreamTaskPlan",
    "check",
    "run_stream_subtask",
    "step_of",
]
