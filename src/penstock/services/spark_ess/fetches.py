# SPDX-License-Identifier: Apache-2.0
"""The chunks that a reader wants of one service: which are asked for, and which are due. Pure.

Rules:

- Chunks come in the order in which they were wanted, whatever stream they are of.
- A request opens a stream of up to `STREAM_BLOCKS` blocks of one executor. Chunks are asked for while what is due
  stays within `window` bytes, or is a single one: so many bytes may come at any moment, and no more.
- A connection that breaks loses what was under way, and nothing else: `begin` asks for it again on the next one.
- A stream in which a chunk has failed gives that same chunk from then on, whatever it is asked for. Its chunks, and
  all that come after them, are asked for anew. A block that may well not be there has a stream alone.
- If three connections in a row end, and no chunk comes in between, the first that is due is to blame: the service
  closes the connection, without a word, where a file is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.errors import ProtocolError
from penstock.services.spark_ess.frames import Answer, ChunkFailure, Failure, FetchedChunk, Message
from penstock.services.spark_ess.messages import Block, fetch_blocks, read_stream
from penstock.services.spark_ess.places import SHUFFLE

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW = 8 << 20
"""Bytes that are due at most, but for a single chunk."""
STREAM_BLOCKS = 64
_OPENINGS = 2
_CLOSED = 3


class FetchSession(Protocol):
    """The session of a connection."""

    def ask(self, body: bytes) -> int:
        """Ask something; the number of the request."""

    def fetch(self, stream: int, number: int) -> None:
        """Ask for a chunk."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A block of an executor that a channel wants; `size` are its bytes as far as they are known.

    `is_doubtful` if it may well not be there.
    """

    channel: int
    executor: str
    block: Block
    size: int = 0
    is_doubtful: bool = False


class Fetched(NamedTuple):
    """A block that was wanted, and its bytes, or the error in their place."""

    wanted: Wanted
    data: pa.Buffer | None
    error: str = ""


@dataclass(slots=True)
class _Stream:
    number: int
    next: int
    left: deque[Wanted]


class Fetches:
    """All that is wanted of one service and has not come yet."""

    __slots__ = (
        "_application",
        "_closed",
        "_due",
        "_due_bytes",
        "_ghosts",
        "_opening",
        "_queue",
        "_streams",
        "_target",
    )

    def __init__(self, application: str) -> None:
        self._application = application
        self._queue: deque[Wanted] = deque()
        self._opening: dict[int, list[Wanted]] = {}
        self._streams: deque[_Stream] = deque()
        self._due: deque[tuple[int, Wanted | None]] = deque()
        """By stream; None what comes and is not wanted from there."""
        self._ghosts: set[int] = set()
        """The openings that are not wanted."""
        self._due_bytes = 0
        self._closed = 0
        self._target: FetchSession | None = None

    def __bool__(self) -> bool:
        """True if something is wanted that has not come."""
        return bool(self._queue or self._opening or self._streams or any(wanted for _, wanted in self._due))

    @property
    def is_connected(self) -> bool:
        """True between `begin` and `end`."""
        return self._target is not None

    def want(self, wanted: Iterable[Wanted]) -> None:
        """Ask for these after all others."""
        self._queue += wanted
        self._go_on()

    def drop(self, channel: int) -> None:
        """Want nothing more of a channel; what is under way is thrown away when it comes."""
        self._queue = deque(each for each in self._queue if each.channel != channel)

    def begin(self, target: FetchSession) -> None:
        """There is a connection."""
        self._target = target
        self._go_on()

    def end(self, *, blames: bool) -> list[Fetched]:
        """The connection is gone; what is to blame for that, if it was there and anything is."""
        self._target = None
        under_way = bool(self._opening or self._streams or any(wanted for _, wanted in self._due))
        self._ask_anew()
        self._due.clear()
        self._ghosts.clear()
        if not under_way or not blames:
            return []
        self._closed += 1
        if self._closed < _CLOSED:
            return []
        self._closed = 0
        return [Fetched(self._queue.popleft(), None, "the service closes the connection: a file is missing or cut")]

    def took(self, message: Message) -> list[Fetched]:
        """A message has come; what came with it. ProtocolError for one that makes no sense."""
        found: list[Fetched] = []
        match message:
            case Answer(request) | Failure(request) if request in self._ghosts:
                self._ghosts.remove(request)
            case Answer(request, body):
                self._opened(self._opening.pop(request), body)
            case Failure(request, text):
                found = [Fetched(wanted, None, text) for wanted in self._opening.pop(request)]
            case FetchedChunk(_, _, data):
                found = [Fetched(wanted, data) for wanted in self._came()]
            case ChunkFailure(stream, _, text):
                found = [Fetched(wanted, None, text) for wanted in self._came()]
                if found and (stream in dict(self._due) or stream in {each.number for each in self._streams}):
                    self._ask_anew()
        self._go_on()
        return found

    def _opened(self, blocks: list[Wanted], body: bytes) -> None:
        stream, chunks = read_stream(body)
        if chunks != len(blocks):
            raise ProtocolError(f"a stream has {chunks} chunks, {len(blocks)} blocks were asked for")
        self._streams.append(_Stream(stream, 0, deque(blocks)))

    def _came(self) -> list[Wanted]:
        """The chunk that is due first has come, or an error in its place: what it was, if it is still wanted."""
        self._closed = 0
        _, wanted = self._due.popleft()
        if wanted is None:
            return []
        self._due_bytes -= wanted.size
        return [wanted]

    def _ask_anew(self) -> None:
        """Put what is under way in front of what waits, and want nothing of the streams there are."""
        due = [wanted for _, wanted in self._due if wanted is not None]
        left = [wanted for stream in self._streams for wanted in stream.left]
        opening = [wanted for group in self._opening.values() for wanted in group]
        self._queue = deque([*due, *left, *opening, *self._queue])
        self._due = deque((stream, None) for stream, _ in self._due)
        self._due_bytes = 0
        self._streams.clear()
        self._ghosts |= self._opening.keys()
        self._opening.clear()

    def _go_on(self) -> None:
        target = self._target
        if target is None:
            return
        while self._streams and (not self._due or self._due_bytes + self._streams[0].left[0].size <= WINDOW):
            stream = self._streams[0]
            wanted = stream.left.popleft()
            target.fetch(stream.number, stream.next)
            stream.next += 1
            self._due.append((stream.number, wanted))
            self._due_bytes += wanted.size
            if not stream.left:
                self._streams.popleft()
        while self._queue and len(self._opening) + len(self._streams) < _OPENINGS:
            group = list(self._next_group())
            blocks = [wanted.block for wanted in group]
            request = target.ask(fetch_blocks(self._application, group[0].executor, SHUFFLE, blocks))
            self._opening[request] = group

    def _next_group(self) -> Iterator[Wanted]:
        first = self._queue.popleft()
        yield first
        for _ in range(STREAM_BLOCKS - 1):
            if first.is_doubtful or not self._queue:
                return
            following = self._queue[0]
            if following.is_doubtful or following.executor != first.executor:
                return
            yield self._queue.popleft()
