# SPDX-License-Identifier: Apache-2.0
"""Rows in flight as chunks of a task's part, and back.

Rows that wait as batches are framed by the thread that stores; messages that a barrier overtook are stored as they
were sent. Neither is put together first: a chunk goes to the storage piece by piece. Both are read back as batches.

A channel's rows are several chunks of one name, its pieces. One that was restored and of which no row has been taken
is not written again: the next checkpoint refers to it where it lies. Pieces are small, because of one that was read
in part the rest is written anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from penstock.checkpoint.channel_state import ChannelData, ChannelKey, edge_uid, head
from penstock.checkpoint.metadata import Chunk
from penstock.graph import RESULT_EDGE, JobEdge, JobGraph, JobVertex
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler, frame_message
from penstock.record.joining import joined
from penstock.stream.commit_sink import CommitSink

_STAY_ALIGNED = ("forward", "rescale", "broadcast")
"""Exchanges whose rows in flight could not be dealt out again, so no barrier overtakes them."""


PIECE_BYTES = 256 << 10
"""A piece is closed with the message after which it is no smaller."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A piece of which no row has been taken since it was restored: where it lies, and its rows."""

    chunk: Chunk
    rows: pa.RecordBatch


InFlight: TypeAlias = pa.RecordBatch | Restored
"""Rows that wait in a task."""


def rows_of(waiting: InFlight) -> pa.RecordBatch:
    """The rows themselves."""
    return waiting.rows if isinstance(waiting, Restored) else waiting


@dataclass(frozen=True, slots=True)
class SavedChannel:
    """The rows of one channel in a snapshot, oldest first; bytes are messages as they are on the wire.

    `has_barrier`: the channel's barrier stands behind them, so its producer takes part in the checkpoint.
    """

    key: ChannelKey
    schema: pa.Schema
    rows: Sequence[bytes | InFlight]
    has_barrier: bool = False

    @property
    def size(self) -> int:
        """Bytes of the rows, about."""
        return sum(map(_size, self.rows))

    @property
    def referred(self) -> int:
        """Bytes of them that are not written again."""
        return sum(each.chunk.length for each in self.rows if isinstance(each, Restored))


def pieces_of(saved: SavedChannel) -> Iterator[tuple[str, list[bytes | memoryview] | Chunk]]:
    """A channel's chunks in order: the bytes of each in parts, or the chunk of an earlier checkpoint that it is."""
    name = saved.key.chunk
    piece = _Piece(saved.schema)
    for each in saved.rows:
        if isinstance(each, Restored):
            if piece.size:
                yield name, piece.content()
            yield name, each.chunk
            piece = _Piece(saved.schema)
            continue
        piece.add(each)
        if piece.is_full:
            yield name, piece.content()
            piece = _Piece(saved.schema)
    if piece.size:
        yield name, piece.content()


def restored(chunk: Chunk, data: ChannelData, schema: pa.Schema) -> list[InFlight]:
    """The rows of a piece; raises what the record layer raises for bytes that are no messages of it."""
    batches = joined(_decoded(data.runs, BatchCodec(schema)))
    return [Restored(chunk, batches[0])] if len(batches) == 1 else list(batches)


def piece_of(schema: pa.Schema, rows: Sequence[pa.RecordBatch]) -> list[bytes | memoryview]:
    """These rows as a piece's bytes, in parts."""
    piece = _Piece(schema)
    for batch in joined(list(rows)):
        piece.add(batch)
    return piece.content()


def allows_overtaking(graph: JobGraph, edge: int) -> bool:
    """Tell whether a barrier may overtake rows on this edge: on none into a task with an edge that stays aligned.

    And on none into a task that commits: messages in flight would be restored, and their commit was given up before.
    """
    if edge == RESULT_EDGE:
        return False
    consumer = graph.edge(edge).consumer
    if any(isinstance(getattr(each, "sink", None), CommitSink) for each in graph.vertex(consumer).operators):
        return False
    return not any(_stays_aligned(each) for each in graph.inputs_of(consumer))


def _stays_aligned(edge: JobEdge) -> bool:
    """Tell whether rows of an exchange may not be dealt out anew: they have a place, or go to all."""
    return edge.exchange.kind in _STAY_ALIGNED or bool(getattr(edge.exchange, "to_all", ""))


def uid_of(vertex: JobVertex) -> str:
    """The name of a vertex in checkpoints."""
    return vertex.uid or f"v{vertex.id}"


def edge_uids(graph: JobGraph) -> Mapping[int, str]:
    """The name of each edge in checkpoints, by the edge's number."""
    found: dict[int, str] = {}
    twins: dict[tuple[int, int, int], int] = {}
    for edge in graph.edges:
        place = (edge.producer, edge.consumer, edge.side)
        twin = twins[place] = twins.get(place, -1) + 1
        producer, consumer = (uid_of(graph.vertex(vertex)) for vertex in place[:2])
        found[edge.id] = edge_uid(producer, consumer, edge.side, twin)
    return found


class _Piece:
    """One piece that is written: its parts, none of them copied but for what is encoded now."""

    def __init__(self, schema: pa.Schema) -> None:
        self._codec = BatchCodec(schema)
        self._assembler = _assembler(self._codec)
        self._parts: list[bytes | memoryview] = []
        self._lengths: list[int] = []
        self._rows = 0
        self.size = 0

    @property
    def is_full(self) -> bool:
        """True if it is large enough, and ends with a message: one of several segments came in several slices."""
        return self.size >= PIECE_BYTES and not self._assembler.pending

    def add(self, rows: bytes | pa.RecordBatch) -> None:
        """Put rows after those that are in it."""
        if isinstance(rows, bytes):
            parts: tuple[bytes | memoryview, ...] = (rows,)
            self._rows += sum(batch.num_rows for batch in self._assembler.feed(memoryview(rows), is_kept=True))
        else:
            parts = frame_message(self._codec.encode(rows), verify=False).parts
            self._rows += rows.num_rows
        length = sum(map(len, parts))
        self._parts += parts
        self._lengths.append(length)
        self.size += length

    def content(self) -> list[bytes | memoryview]:
        """The chunk in parts; raises IncompleteDataError in the middle of a message."""
        self._assembler.finish()
        return [head(self._lengths, self._rows), *self._parts]


def _size(rows: bytes | InFlight) -> int:
    if isinstance(rows, Restored):
        return rows.chunk.length
    return len(rows) if isinstance(rows, bytes) else int(rows.nbytes)


def _decoded(runs: Iterable[bytes], codec: BatchCodec) -> list[pa.RecordBatch]:
    """The batches of these messages, over their memory."""
    assembler = _assembler(codec)
    batches = [batch for run in runs for batch in assembler.feed(memoryview(run), is_kept=True)]
    assembler.finish()
    return batches


def _assembler(codec: BatchCodec) -> MessageAssembler:
    # The chunk's checksum covers the messages; theirs is 0 where they were not verified.
    return MessageAssembler(codec, CompletenessCounter(), verify=False)
