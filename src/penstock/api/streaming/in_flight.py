# SPDX-License-Identifier: Apache-2.0
"""The bytes of rows in flight that one unaligned checkpoint of a query holds at most, but for restored ones.

Rows in flight lie in the segments of the exchanges that barriers may overtake: at the sender, and where tasks run on
several hosts also at the receiver. Beside these a task holds the slice that it reads, what its step gave and has no
room yet, and a message for each of its channels. A step is counted as the rows it may take, or `STEP_BYTES` where
these have no fixed width: what a function of yours makes of them in one call has no bound. Rows in flight of the
checkpoint that an attempt began with come on top, as long as no task has read them: the job's progress says how many.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.graph import JobGraph
from penstock.settings import NetworkSettings
from penstock.stream.in_flight import allows_overtaking
from penstock.stream.pace import MOST_ROWS, STEP_BYTES

_PART_OF_SEGMENT = 4
"""Messages are no larger, but for a row that is."""


def most_in_flight(graph: JobGraph, network: NetworkSettings, *, one_host: bool) -> int:
    """Bytes, about: messages have a header more than the rows in them."""
    total = 0
    for edge in graph.edges:
        if not allows_overtaking(graph, edge.id):
            continue
        producers, consumers = (graph.vertex(number).parallelism for number in (edge.producer, edge.consumer))
        segments = producers * _segments(consumers, network) + consumers
        if not one_host:
            segments += consumers * _segments(producers, network)
        total += segments * network.segment_size + producers * consumers * network.segment_size // _PART_OF_SEGMENT
        total += (producers + consumers) * _step(edge.schema)
    return total


def _segments(channels: int, network: NetworkSettings) -> int:
    """The segments of one writer, or of one gate."""
    return channels * network.exclusive_buffers_per_channel + network.floating_buffers_per_gate


def _step(schema: pa.Schema) -> int:
    """Bytes of a step's rows."""
    try:
        bits: int = sum(field.type.bit_width + field.nullable for field in schema)
    except ValueError:
        return STEP_BYTES
    return min(STEP_BYTES, MOST_ROWS * -(-bits // 8))
