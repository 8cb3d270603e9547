# SPDX-License-Identifier: Apache-2.0
"""Rows in flight as chunks of a task's part, and back.

Rows that wait as batches are framed by the thread that stores; messages that a barrier overtook are stored as they
were sent. Neither is put together first: a chunk goes to the storage piece by piece. Both are read back as batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.checkpoint.channel_state import ChannelData, ChannelKey, edge_uid, head
from penstock.graph import RESULT_EDGE, JobGraph, JobVertex
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler, frame_message
from penstock.shuffle.streaming import Overtaken
from penstock.stream.chain import Chunk

_STAY_ALIGNED = ("forward", "rescale", "broadcast")
"""Exchanges whose rows in flight could not be dealt out again, so no barrier overtakes them."""


@dataclass(frozen=True, slots=True)
class SavedChannel:
    """What a snapshot holds of one channel: its rows, oldest first."""

    key: ChannelKey
    schema: pa.Schema
    rows: Overtaken

    @property
    def size(self) -> int:
        """Bytes of the rows, about."""
        return sum(len(each) if isinstance(each, bytes) else each.nbytes for each in self.rows)


def chunk_of(saved: SavedChannel) -> Chunk:
    """The chunk, whose bytes are made when it is stored."""
    return saved.key.chunk, lambda: _framed(saved)


def batches_of(data: ChannelData, schema: pa.Schema) -> list[pa.RecordBatch]:
    """The rows of a channel's state; raises what the record layer raises for bytes that are no messages of it."""
    return _decoded(data.runs, BatchCodec(schema))


def allows_overtaking(graph: JobGraph, edge: int) -> bool:
    """Whether a barrier may overtake rows on this edge: on none into a task that has an edge that stays aligned."""
    if edge == RESULT_EDGE:
        return False
    consumer = graph.edge(edge).consumer
    return all(each.exchange.kind not in _STAY_ALIGNED for each in graph.inputs_of(consumer))


def uid_of(vertex: JobVertex) -> str:
    """What a vertex is called in checkpoints."""
    return vertex.uid or f"v{vertex.id}"


def edge_uids(graph: JobGraph) -> Mapping[int, str]:
    """What each edge is called in checkpoints, by its number."""
    found: dict[int, str] = {}
    twins: dict[tuple[int, int, int], int] = {}
    for edge in graph.edges:
        place = (edge.producer, edge.consumer, edge.side)
        twin = twins[place] = twins.get(place, -1) + 1
        producer, consumer = (uid_of(graph.vertex(vertex)) for vertex in place[:2])
        found[edge.id] = edge_uid(producer, consumer, edge.side, twin)
    return found


def _framed(saved: SavedChannel) -> list[bytes | memoryview]:
    """The chunk in pieces, none of them copied but for what is encoded now."""
    codec = BatchCodec(saved.schema)
    rows = sum(batch.num_rows for batch in _decoded((each for each in saved.rows if isinstance(each, bytes)), codec))
    pieces: list[bytes | memoryview] = []
    lengths: list[int] = []
    for each in saved.rows:
        if isinstance(each, bytes):
            parts: tuple[bytes | memoryview, ...] = (each,)
        else:
            parts = frame_message(codec.encode(each), verify=False).parts
            rows += each.num_rows
        pieces += parts
        lengths.append(sum(map(len, parts)))
    return [head(lengths, rows), *pieces]


def _decoded(runs: Iterable[bytes], codec: BatchCodec) -> list[pa.RecordBatch]:
    """The batches of these messages, over their memory."""
    # The chunk's checksum covers the messages; theirs is 0 where nobody verified them.
    assembler = MessageAssembler(codec, CompletenessCounter(), verify=False)
    batches = [batch for run in runs for batch in assembler.feed(memoryview(run), is_kept=True)]
    assembler.finish()
    return batches
