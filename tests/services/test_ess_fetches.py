# SPDX-License-Identifier: Apache-2.0
"""Chunks that are wanted come once each and in order, whatever breaks meanwhile, against a model of the service."""

from __future__ import annotations

import struct
from collections import deque

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.services.spark_ess.fetches import WINDOW, Fetched, Fetches, Wanted
from penstock.services.spark_ess.frames import Answer, ChunkFailure, Failure, FetchedChunk, Message
from penstock.services.spark_ess.messages import Block

UNKNOWN = "unknown"
"""An executor that the service does not know."""


class ModelService:
    """A shuffle service as the real one behaves: a stream in which a chunk has failed stays at that chunk."""

    def __init__(self) -> None:
        self.missing: set[int] = set()
        """The maps that are not there."""
        self.cut: set[int] = set()
        """The maps whose data is gone: the connection ends where they are due."""
        self._streams: dict[int, deque[Block]] = {}
        self._requests = 0
        self._waiting: deque[Message | None] = deque()
        self._last_stream = 0

    def ask(self, body: bytes) -> int:
        """Open a stream."""
        self._requests += 1
        executor, blocks = _parsed(body)
        if executor == UNKNOWN:
            self._waiting.append(Failure(self._requests, "not registered"))
            return self._requests
        self._last_stream += 1
        self._streams[self._last_stream] = deque(blocks)
        answer = struct.pack(">bqi", 3, self._last_stream, len(blocks))
        self._waiting.append(Answer(self._requests, answer))
        return self._requests

    def fetch(self, stream: int, number: int) -> None:
        """Ask for the next chunk of a stream."""
        block = self._streams[stream][0]
        if block.map in self.cut:
            self._waiting.append(None)
        elif block.map in self.missing:
            self._waiting.append(ChunkFailure(stream, number, "no such file"))
        else:
            self._streams[stream].popleft()
            self._waiting.append(FetchedChunk(stream, number, pa.py_buffer(repr(block).encode())))

    def give(self) -> Message | None:
        """The next message; None: the connection ends."""
        return self._waiting.popleft()

    @property
    def has_something(self) -> bool:
        """True if a message is under way."""
        return bool(self._waiting)

    def connection_ends(self) -> None:
        """Everything under way is lost."""
        self._waiting.clear()
        self._streams.clear()


def _parsed(body: bytes) -> tuple[str, list[Block]]:
    position, texts = 1, []
    for _ in range(2):
        (size,) = struct.unpack_from(">i", body, position)
        texts.append(body[position + 4 : position + 4 + size].decode())
        position += 4 + size
    (count,) = struct.unpack_from(">i", body, position + 4)
    maps = struct.unpack_from(f">{count}q", body, position + 8)
    ranges = struct.unpack_from(f">{3 * count}i", body, position + 12 + 8 * count)
    return texts[1], [Block(m, *ranges[3 * n + 1 : 3 * n + 3]) for n, m in enumerate(maps)]


WANTED = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["e1", "e2", UNKNOWN]),
    st.integers(0, 5),
    st.sampled_from([0, 100, WINDOW // 2]),
)


@given(
    st.lists(WANTED, max_size=40),
    st.sets(st.integers(0, 5), max_size=2),
    st.sets(st.integers(0, 5), max_size=2),
    st.lists(st.booleans(), max_size=60),
)
def test_every_chunk_comes_once(
    wishes: list[tuple[int, str, int, int]], missing: set[int], cut: set[int], breaks: list[bool]
) -> None:
    """Each wish has its bytes, or an error that fits; of a channel those that came keep their order."""
    service, fetches = ModelService(), Fetches("app")
    service.missing, service.cut = missing, cut
    wanted = [Wanted(c, e, Block(m, n, n + 1), size, m in missing) for n, (c, e, m, size) in enumerate(wishes)]
    fetches.want(wanted[: len(wanted) // 2])
    found: list[Fetched] = []
    fetches.begin(service)
    fetches.want(wanted[len(wanted) // 2 :])
    turns, broken = iter(breaks), 0
    while fetches:
        if not fetches.is_connected:
            fetches.begin(service)
        assert service.has_something, "something is wanted, and nothing is asked for"
        message = service.give()
        if message is None or (next(turns, False) and broken < 2):
            broken = 0 if message is None else broken + 1
            service.connection_ends()
            found += fetches.end(blames=message is None)
        else:
            broken = 0
            found += fetches.took(message)
    assert len(found) == len({each.wanted for each in found}) == len(wanted)
    for each in found:
        if each.wanted.executor == UNKNOWN:
            assert "not registered" in each.error
        elif each.wanted.block.map in missing | cut:
            assert each.data is None
        else:
            assert each.data is not None
            assert each.data.to_pybytes() == repr(each.wanted.block).encode()
    for channel in range(4):
        came = [each.wanted.block.first for each in found if each.wanted.channel == channel and each.data is not None]
        assert came == sorted(came)


def test_what_is_due_stays_within_the_window() -> None:
    """No more bytes are asked for than the window holds, but for a single chunk that is larger."""
    service, fetches = ModelService(), Fetches("app")
    fetches.begin(service)
    sizes = [WINDOW // 4] * 6 + [3 * WINDOW] * 2 + [1] * 3
    fetches.want([Wanted(0, "e1", Block(1, n, n + 1), size) for n, size in enumerate(sizes)])
    came = 0
    while fetches:
        due = [wanted.size for _, wanted in fetches._due if wanted is not None]
        assert sum(due) <= WINDOW or len(due) == 1
        message = service.give()
        assert message is not None
        came += len(fetches.took(message))
    assert came == len(sizes)
