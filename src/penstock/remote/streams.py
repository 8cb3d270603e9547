# SPDX-License-Identifier: Apache-2.0
"""A worker's side of a connection that reads: streams of blocks, each within its reader's credit.

Rules: at most `_AHEAD` reads of a stream are under way or wait for the connection, none larger than `RUN_BYTES` or
one block, and all of the worker's within its memory for readers, first come first served. So neither a slow reader
nor many of them take more than the worker has for reading, and who stands still holds up nobody (`read_memory`).
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence

from penstock.errors import ForeignError, PenstockError, ProtocolError, StorageError
from penstock.link.control import error_message, pack
from penstock.remote import messages as ask
from penstock.remote.blocks import BLOCK_BYTES, LEAST_CREDIT
from penstock.remote.holdings import WorkerHoldings
from penstock.remote.merged import Spot
from penstock.remote.peers import ServiceAccess, user_of
from penstock.remote.wire import PAIR, READ_SUM, BulkFrame, PeerLogic

_LOG = logging.getLogger("penstock.remote.worker")
RUN_BYTES = BLOCK_BYTES
_AHEAD = 2
_STREAMS = 4096


class _BlockStream:
    """One reader's blocks."""

    def __init__(self, number: int, runs: Iterator[Sequence[Spot]], credit: int) -> None:
        self.number = number
        self.runs = runs
        self.credit = credit
        self.next: Sequence[Spot] | None = next(runs, None)
        self.under_way = 0
        self.is_waiting = False
        """True while it waits for memory."""
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None
        self.queue: deque[Sequence[Spot]] = deque()


class ReadSession:
    """One connection's streams."""

    logic: PeerLogic

    def __init__(self, holdings: WorkerHoldings, application: str, access: ServiceAccess) -> None:
        self._holdings = holdings
        self._application = application
        self._user = user_of(application)
        self._access = access
        self._streams: dict[int, _BlockStream] = {}

    def open(self, asked: ask.OpenReader) -> ask.Reading:
        """Begin a stream; its blocks follow the answer."""
        if asked.stream in self._streams or len(self._streams) >= _STREAMS or asked.credit < LEAST_CREDIT:
            raise ProtocolError(f"stream {asked.stream} can't be opened with a credit of {asked.credit} bytes")
        dataset = self._holdings.known(self._owner(asked), asked.dataset)
        files = [file for (file,) in struct.iter_unpack("<I", asked.files)]
        plan = dataset.plan(asked.writers, files)
        size = sum(spot.size for spot in plan.spots)
        if plan.spots:
            stream = _BlockStream(asked.stream, runs_of(plan.spots), asked.credit)
            self._streams[asked.stream] = stream
            asyncio.get_running_loop().call_soon(self._pump, stream)
        return ask.Reading(b"".join(READ_SUM.pack(*each) for each in plan.sums), size)

    def _owner(self, asked: ask.OpenReader) -> str:
        """The application whose rows are wanted; ForeignError where they are not this one's to read."""
        if not asked.owner:
            return self._application
        granted = self._access.grant(self._application, asked.owner, asked.dataset)
        if not hmac.compare_digest(granted, asked.grant):
            raise ForeignError(f"{asked.dataset} is of {asked.owner}, and {self._application} may not read it")
        return asked.owner

    def credit(self, body: memoryview) -> None:
        """A reader takes more."""
        number, nbytes = PAIR.unpack(body)
        if (stream := self._streams.get(number)) is not None:
            stream.credit += nbytes
            self._pump(stream)

    def leave(self, body: memoryview) -> None:
        """A reader wants no more of a stream."""
        self._end(struct.unpack("<I", body)[0])

    def close(self) -> None:
        """The connection is over."""
        for number in list(self._streams):
            self._end(number)

    def _end(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.next = None
            stream.is_waiting = False
            self._holdings.reading.leave(stream, time.monotonic())

    def _pump(self, stream: _BlockStream) -> None:
        """Begin the reads that credit and memory allow."""
        while stream.next is not None and stream.under_way < _AHEAD and not stream.is_waiting:
            size, now = _size(stream.next), time.monotonic()
            if stream.credit < size:
                return
            if self._holdings.reading.take(stream, size, functools.partial(self._taken, stream), now, self._user):
                self._begin(stream, stream.next, size)
            else:
                stream.is_waiting, stream.since = True, now
                self._holdings.watch_readers()

    def _taken(self, stream: _BlockStream) -> None:
        """Memory for the next read has become free."""
        stream.is_waiting = False
        self._holdings.users.moved(self._user, 0, time.monotonic() - stream.since)
        assert stream.next is not None  # noqa: S101 - a stream that ends leaves the line
        self._begin(stream, stream.next, _size(stream.next))
        self._pump(stream)

    def _begin(self, stream: _BlockStream, run: Sequence[Spot], size: int) -> None:
        stream.credit -= size
        stream.under_way += 1
        stream.next = next(stream.runs, None)
        stream.queue.append(run)
        if stream.task is None:
            stream.task = asyncio.ensure_future(self._read(stream))

    async def _read(self, stream: _BlockStream) -> None:
        """Read and send, run after run, as long as any was begun."""
        while stream.queue:
            run = stream.queue.popleft()
            size, began = _size(run), time.monotonic()
            data = self._holdings.memory.take(size)
            try:
                await self._holdings.store.read(run, data)
            except Exception as error:  # noqa: BLE001 - memory must come back, and the reader hear, whatever it is
                if not isinstance(error, PenstockError | OSError):
                    _LOG.exception("a fault while blocks of %s were read", self._application)
                self._give_back(stream, size, data)
                self._break(stream, error)
                break
            self._holdings.figures.read += size
            self._holdings.users.moved(self._user, size, time.monotonic() - began)
            self.logic.send_rows(
                BulkFrame.DATA,
                PAIR.pack(stream.number, 0),
                (data,),
                functools.partial(self._sent, stream, size, data),
            )
        stream.task = None
        while stream.queue:
            self._holdings.reading.give(stream, _size(stream.queue.popleft()), time.monotonic())
        if stream.next is None and not stream.under_way:
            self._end(stream.number)

    def _sent(self, stream: _BlockStream, size: int, data: memoryview) -> None:
        stream.under_way -= 1
        self._give_back(stream, size, data)
        if stream.next is None and not stream.under_way and stream.task is None:
            self._end(stream.number)
        else:
            self._pump(stream)

    def _give_back(self, stream: _BlockStream, size: int, data: memoryview) -> None:
        self._holdings.memory.give(data)
        self._holdings.reading.give(stream, size, time.monotonic())

    def _break(self, stream: _BlockStream, error: Exception) -> None:
        if self._streams.get(stream.number) is stream:
            self._end(stream.number)
            told = error if isinstance(error, PenstockError) else StorageError(f"a file can't be read: {error}")
            self.logic.send_bulk(BulkFrame.BROKEN, struct.pack("<I", stream.number) + pack(error_message(told)))


def runs_of(spots: Sequence[Spot]) -> Iterator[Sequence[Spot]]:
    """The blocks, in runs of neighbours that are read at once."""
    begin = 0
    while begin < len(spots):
        first = spots[begin]
        end, size = begin + 1, first.size
        while end < len(spots):
            following = spots[end]
            if (following.path, following.offset) != (first.path, first.offset + size):
                break
            if size + following.size > RUN_BYTES:
                break
            size += following.size
            end += 1
        yield spots[begin:end]
        begin = end


def _size(run: Sequence[Spot]) -> int:
    return run[-1].offset + run[-1].size - run[0].offset
