# SPDX-License-Identifier: Apache-2.0
"""A worker's side of a connection that reads: streams of blocks, each within its reader's credit.

Rules: at most `_AHEAD` reads of a stream are under way or wait for the connection, none larger than `RUN_BYTES` or
one block, and all of the worker's within its memory for readers, first come first served. So neither a slow reader
nor many of them take more than the worker has for reading, and one that stands still holds up no other
(`read_memory`).
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import struct
import time
from collections import deque
from collections.abc import Iterator

from penstock.errors import ForeignError, PenstockError, ProtocolError, StorageError
from penstock.link.control import error_message, pack
from penstock.remote import messages as ask
from penstock.remote.blocks import LEAST_CREDIT
from penstock.remote.holdings import WorkerHoldings
from penstock.remote.merged import MergedDataset, Spot
from penstock.remote.peers import ServiceAccess, user_of
from penstock.remote.read_page import WantedPage
from penstock.remote.wire import PAIR, BulkFrame, PeerLogic

_LOG = logging.getLogger("penstock.remote.worker")
_AHEAD = 2
_STREAMS = 64


class _BlockStream:
    """One reader's blocks."""

    def __init__(self, number: int, runs: Iterator[Spot], credit: int) -> None:
        self.number = number
        self.runs = runs
        self.credit = credit
        self.next: Spot | None = next(runs, None)
        self.under_way = 0
        self.is_waiting = False
        """True while it waits for memory."""
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None
        self.queue: deque[Spot] = deque()


class ReadSession:
    """One connection's streams."""

    logic: PeerLogic

    def __init__(self, holdings: WorkerHoldings, application: str, access: ServiceAccess) -> None:
        self._holdings = holdings
        self._application = application
        self._user = user_of(application)
        self._access = access
        self._streams: dict[int, _BlockStream | None] = {}
        """None for one that is being opened."""

    def open(self, asked: ask.OpenReader) -> asyncio.Future[ask.Reading]:
        """Begin a stream; its blocks follow the answer."""
        if asked.stream in self._streams or len(self._streams) >= _STREAMS or asked.credit < LEAST_CREDIT:
            raise ProtocolError(f"stream {asked.stream} can't be opened with a credit of {asked.credit} bytes")
        files = [file for (file,) in struct.iter_unpack("<I", asked.files)]
        if len(files) * len(asked.writers) > ask.MOST_READ or max(files, default=0) >= ask.MOST_FILES:
            raise ProtocolError(
                f"{len(files)} files of {len(asked.writers)} writers are asked for: {ask.MOST_READ:,} is the limit"
            )
        owner = self._owner(asked)
        dataset = self._holdings.known(owner, asked.dataset)
        wanted = WantedPage(dataset.readable(asked.writers), dataset.paths(files))
        self._streams[asked.stream] = None
        return asyncio.ensure_future(self._opened(asked, dataset, wanted))

    async def _opened(self, asked: ask.OpenReader, dataset: MergedDataset, wanted: WantedPage) -> ask.Reading:
        try:
            page = await self._holdings.store.page(wanted)
        finally:
            is_open = self._streams.pop(asked.stream, asked) is None
        dataset.readable(wanted.writers)  # none of them has gone meanwhile
        stream = _BlockStream(asked.stream, page.runs(), asked.credit)
        if is_open and stream.next is not None:
            self._streams[asked.stream] = stream
            asyncio.get_running_loop().call_soon(self._pump, stream)
        return ask.Reading(page.sums, page.size)

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
            size, now = stream.next.size, time.monotonic()
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
        self._begin(stream, stream.next, stream.next.size)
        self._pump(stream)

    def _begin(self, stream: _BlockStream, run: Spot, size: int) -> None:
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
            size, began = run.size, time.monotonic()
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
            self._holdings.reading.give(stream, stream.queue.popleft().size, time.monotonic())
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
