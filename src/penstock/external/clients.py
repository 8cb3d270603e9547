# SPDX-License-Identifier: Apache-2.0
"""A connection of an application to the host service: questions in, answers and bytes out.

Rules: over the Unix socket the kernel says which user it is, a greeting which version it speaks, and the first
question which application, within ten seconds. Over the port the handshake has proved it. A partition whose writer's
connection ends before it is committed has failed. A connection asks `MOST_AT_ONCE` things at a time, and no more, and
all of a user have a share (`budgets`), and their turns with others' (`turns`). A question about many partitions is
answered in pieces, each in a turn of its own.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.connection.budgets import UserShare
from penstock.connection.frame_connection import Decoder, FrameConnection
from penstock.connection.frames import OutgoingFrame, beginning
from penstock.connection.handshake import greeting
from penstock.connection.sockets import SocketEndpoint
from penstock.connection.transport import Endpoint
from penstock.errors import AuthenticationError, EnvironmentLostError, PenstockError, ProtocolError
from penstock.external.accounts import Account
from penstock.external.chunk_memory import ChunkMemory
from penstock.external.keeper import Keeper
from penstock.external.question_reader import QuestionReader
from penstock.external.requests import (
    CHUNK,
    CHUNK_BYTES,
    CHUNK_HEAD,
    FETCH,
    FETCH_BODY,
    REQUESTS,
    BeginPartition,
    BegunPartition,
    CommitPartition,
    EndApplication,
    FindByName,
    FindRange,
    ForgetFormer,
    ForgetJob,
    GiveUpPartition,
    GrowPartition,
    Introduce,
    Introduced,
    LendFile,
    ListHeld,
    PartitionRoom,
    PrepareKept,
    ReleaseKept,
    SwitchBack,
    SwitchKept,
    UndoKept,
)
from penstock.link.control import error_message
from penstock.link.frames import FRAME_ERRORS, LinkFrameType, read_call, reply_frame
from penstock.link.wire import Done, from_wire, to_wire

log = logging.getLogger("penstock.external")

MOST_AT_ONCE = 256
_PIECE = 16 << 10
"""Bytes at a time for a reader of a user whose memory is taken."""
_METHODS = {request.METHOD: request for request in REQUESTS}
_PEER = struct.Struct("3i")

Message = tuple[int, memoryview]


class Fetch(NamedTuple):
    """A FETCH: its call, the partition's number, offset and bytes, and the moment at which it came."""

    call: int
    number: int
    offset: int
    length: int
    since: float


class ClientSession:
    """The core of one connection, and the tasks that answer it."""

    def __init__(
        self, keeper: Keeper, endpoint: Endpoint, account: Account | None, memory: ChunkMemory, share: UserShare
    ) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.questions = QuestionReader(share, "" if account else endpoint.peer, greets=account is None)
        self.decoder: Decoder[Message] = self.questions
        self.connection: FrameConnection[Message] | None = None
        self.account = account
        self.bytes_given = self.bytes_lent = 0
        self._keeper = keeper
        self._endpoint = endpoint
        self._memory = memory
        self._share = share
        self._out: deque[OutgoingFrame] = deque()
        self._pieces: deque[OutgoingFrame] = deque()
        """Those of an answer that goes out piece by piece: nothing else may come between them."""
        self._is_in_pieces = False
        self._answering: set[asyncio.Task[None]] = set()
        self._reading: set[asyncio.Task[None]] = set()
        """Never cancelled: a thread writes into the buffer of each."""
        self._fetches: deque[Fetch] = deque()
        """The fetches that wait for memory."""
        self._is_over = self._is_in_line = False
        self.is_introducing = False
        """True while an application that has said who it is waits to be known: what it asks next waits as well."""
        self._held = 0
        """The buffers that this connection holds."""
        self._writing: set[int] = set()
        if account is not None:
            account.connections += 1
        else:
            self._out.append(OutgoingFrame((greeting(),), len(greeting())))

    def receive(self, message: Message) -> None:
        """Begin to answer a question, in turn with other users'."""
        if not self._keeper.upkeep.turns.take(self._share.user, functools.partial(self._receive_later, message)):
            self._is_in_line = True
            if self.connection is not None:
                self.connection.stop_reading()

    def _receive_later(self, message: Message) -> None:
        """Its turn has come; the frame's bytes are where they were, as nothing was read meanwhile."""
        if not self._is_in_line:
            self._receive(message)
            return
        self._is_in_line = False
        connection = self.connection
        if connection is not None:
            connection.later(functools.partial(self._receive, message))
            if not self._share.is_over:
                self._read_on()

    def _read_on(self) -> None:
        if self.connection is not None and not self.is_introducing:
            self.connection.go_on_reading()

    def _receive(self, message: Message) -> None:
        kind, body = message
        if len(self._answering) + len(self._reading) + len(self._fetches) >= MOST_AT_ONCE:
            raise ProtocolError(f"more than {MOST_AT_ONCE} questions came at once")
        try:
            if kind == FETCH and self.account is not None:
                call, partition, offset, length = FETCH_BODY.unpack(body)
                self._fetches.append(Fetch(call, partition, offset, length, time.monotonic()))
                self._share.questions += 1
                self._fetch()
            elif kind == LinkFrameType.CALL:
                number, method, plain, _ = read_call(body)
                request = from_wire(_METHODS[method], plain)
                self._share.questions += 1
                if isinstance(request, Introduce) and self.connection is not None:
                    self.is_introducing = True
                    self.connection.stop_reading()
                self._begin(self._answering, self._answered(number, request), number)
            else:
                raise ProtocolError(f"a frame of type {kind} is not expected here")
        except FRAME_ERRORS as error:
            raise ProtocolError(f"a frame of type {kind} could not be read: {error!r}") from error
        if self._share.is_over and self.connection is not None:
            self.connection.stop_reading()
            self._share.wait(self._read_on)

    def next_frame(self) -> OutgoingFrame | None:
        """The next frame to send."""
        if self._is_in_pieces:
            return self._pieces.popleft() if self._pieces else None
        return self._out.popleft() if self._out else None

    def farewell(self, error: BaseException | None) -> OutgoingFrame | None:
        """Nothing: who has asked hears of the end."""
        return None

    def connection_lost(self, error: BaseException | None = None) -> None:
        """Give up what it was writing, and what is under way; buffers are free when their reads are over."""
        self._is_over = True
        self.questions.close()
        if self.connection is not None:
            self._share.leave(self._read_on)
            self.connection = None
        self._share.less(questions=len(self._fetches))
        self._fetches.clear()
        for task in list(self._answering):
            task.cancel()
        out, self._out, self._pieces = [*self._pieces, *self._out], deque(), deque()
        for frame in out:
            if frame.recycle is not None:
                frame.recycle()
        account = self.account
        if account is None:
            return
        self._memory.leave(self._fetch)
        account.connections -= 1
        account.seen = time.monotonic()
        for number in self._writing:
            self._keeper.give_up(account, number, "its writer has gone before it was complete")

    def _begin(self, tasks: set[asyncio.Task[None]], answering: Any, number: int) -> None:
        task = asyncio.create_task(self._guarded(answering, number))
        tasks.add(task)

        def done(_: asyncio.Task[None]) -> None:
            tasks.discard(task)
            self._share.less(questions=1)

        task.add_done_callback(done)

    async def _guarded(self, answering: Any, number: int) -> None:
        try:
            await answering
        except PenstockError as error:
            self._send(reply_frame(number, error_message(error)))
        if self.account is not None:
            self.account.seen = time.monotonic()

    def _send(self, data: bytes) -> None:
        if self._is_over:
            return
        self._share.unread += len(data)
        read = functools.partial(self._share.less, unread=len(data))
        self._out.append(OutgoingFrame((data,), len(data), read))
        self.wake()

    def _fetch(self) -> None:
        """Begin what there is memory for."""
        account = self.account
        while self._fetches and account is not None:
            buffer = self._memory.take()
            if buffer is None and (self._held or self._is_in_pieces):
                self._memory.wait(self._fetch)
                return
            fetch = self._fetches.popleft()
            if buffer is None:  # its user's other connections may have all, and not be read just now
                self._is_in_pieces = True
                self._begin(self._reading, self._fetched_in_pieces(account, fetch), fetch.call)
            else:
                self._held += 1
                self._begin(self._reading, self._fetched(account, fetch, buffer), fetch.call)

    def _give_back(self, buffer: memoryview) -> None:
        self._held -= 1
        self._memory.give_back(buffer)
        self._fetch()

    async def _fetched_in_pieces(self, account: Account, fetch: Fetch) -> None:
        """Give bytes without a buffer of the user's memory: one piece is read when the last one has gone."""
        has_begun = False
        try:
            _check_length(fetch.length)
            head = beginning(CHUNK, CHUNK_HEAD.pack(fetch.call), fetch.length)
            piece = memoryview(bytearray(min(_PIECE, fetch.length)))
            for at in range(0, fetch.length, len(piece)):
                part = piece[: fetch.length - at]
                await self._keeper.read(account, fetch.number, fetch.offset + at, part)
                if self._is_over:
                    return
                gone = asyncio.Event()
                parts = (part,) if has_begun else (head, part)
                self._pieces.append(OutgoingFrame(parts, sum(map(len, parts)), gone.set))
                has_begun = True
                self.wake()
                await gone.wait()
        except PenstockError as error:
            if not has_begun:
                raise
            if self.connection is not None:
                self.connection.close(error)
        finally:
            self._is_in_pieces = False
            if not self._is_over:
                self.wake()
                self._fetch()
        self.bytes_given += fetch.length
        self._moved(account, fetch.length, fetch.since)

    async def _fetched(self, account: Account, fetch: Fetch, buffer: memoryview) -> None:
        length = fetch.length
        try:
            _check_length(length)
            await self._keeper.read(account, fetch.number, fetch.offset, buffer[:length])
        except BaseException:
            self._give_back(buffer)
            raise
        if self._is_over:
            self._give_back(buffer)
            return
        head = beginning(CHUNK, CHUNK_HEAD.pack(fetch.call), length)
        recycle = functools.partial(self._give_back, buffer)
        self._out.append(OutgoingFrame((head, buffer[:length]), len(head) + length, recycle))
        self.bytes_given += length
        self._moved(account, length, fetch.since)
        self.wake()

    def _moved(self, account: Account, size: int, since: float) -> None:
        self._keeper.users.moved(str(account.user), size, time.monotonic() - since)

    async def _answered(self, number: int, request: Any) -> None:
        if isinstance(request, Introduce):
            try:
                self._send(reply_frame(number, to_wire(await self._introduce(request))))
            finally:
                self.is_introducing = False
                self._read_on()
            return
        account = self.account
        if account is None:
            raise AuthenticationError("the first word must say which application this is")
        if self._keeper.accounts.find(account.key.name) is not account:
            raise AuthenticationError(f"the application {account.key.title} is over: nothing of it is kept any more")
        if isinstance(request, BeginPartition):
            await self._begin_partition(account, number, request)
            return
        if isinstance(request, LendFile):
            await self._lend(account, number, request)
            return
        self._send(reply_frame(number, to_wire(await self._asked(account, request))))

    async def _introduce(self, request: Introduce) -> Introduced:
        endpoint = self._endpoint
        if self.account is not None or not isinstance(endpoint, SocketEndpoint):
            raise ProtocolError("an application introduces itself once, over the service's Unix socket")
        account = await self._keeper.introduce(request.title, request.key, user_of(endpoint.connected))
        self.account = account
        account.connections += 1
        self.questions.is_known = True
        return Introduced(self._keeper.folders.reserve)

    async def _begin_partition(self, account: Account, call: int, request: BeginPartition) -> None:
        """The answer goes out at once: its descriptors need a socket on which nothing waits."""
        endpoint = self._lending()
        begun = await self._keeper.begin(account, request.partition, request.subpartitions)
        kept = begun.kept
        self._writing.add(kept.number)
        try:
            endpoint.send_descriptor(
                reply_frame(call, to_wire(BegunPartition(kept.number, kept.bytes))), begun.data, begun.index
            )
        except OSError as error:
            raise EnvironmentLostError(f"the writer of {kept.partition} has gone: {error}") from error
        finally:
            begun.close()

    async def _lend(self, account: Account, call: int, request: LendFile) -> None:
        """As of `_begin_partition`. Lent bytes count as given: the task reads them."""
        endpoint, since = self._lending(), time.monotonic()
        lent = await self._keeper.lend(account, request.partition, request.number)
        try:
            if not self._is_over:
                endpoint.send_descriptor(reply_frame(call, to_wire(Done())), lent)
        except OSError as error:
            raise EnvironmentLostError(f"the reader of {request.partition} has gone: {error}") from error
        finally:
            os.close(lent)
        self.bytes_lent += request.bytes
        self._moved(account, request.bytes, since)

    def _lending(self) -> SocketEndpoint:
        """The endpoint, if it is one that takes descriptors."""
        endpoint = self._endpoint
        if not isinstance(endpoint, SocketEndpoint) or endpoint.connected.family != socket.AF_UNIX:
            raise ProtocolError("files are lent over the service's Unix socket: they are descriptors")
        if endpoint.unread:
            raise ProtocolError("an answer with descriptors comes when the last one was read: they take the system's")
        return endpoint

    async def _asked(self, account: Account, request: Any) -> object:
        keeper = self._keeper
        match request:
            case FindRange():
                async with keeper.finding(account):
                    await self._until_read()
                    return await keeper.find(account, request)
            case GrowPartition(number, size):
                return PartitionRoom(await keeper.grow(account, number, size))
            case CommitPartition(number):
                since = time.monotonic()
                if not await keeper.commit(account, request):
                    return Done()
                self._writing.discard(number)
                self._moved(account, keeper.size_of(account, number), since)
            case GiveUpPartition(number, cause):
                keeper.give_up(account, number, cause)
                self._writing.discard(number)
                await keeper.upkeep.index.written()
            case ReleaseKept(partitions):
                await keeper.release(account, partitions)
            case ForgetJob(job):
                await keeper.forget_job(account, job)
            case ListHeld(after):
                return keeper.held(account, after)
            case PrepareKept():
                await keeper.results.prepare(account, request)
            case SwitchKept():
                await keeper.results.switch(account, request)
            case ForgetFormer():
                await keeper.results.forget_former(account, request)
            case SwitchBack():
                await keeper.results.switch_back(account, request)
            case UndoKept():
                await keeper.results.undo(account, request)
            case FindByName():
                return await keeper.results.find(account, request)
            case EndApplication():
                await keeper.end(account)
        return Done()

    async def _until_read(self) -> None:
        """Wait until the user has read enough of what there is."""
        while self._share.is_over and not self._is_over:
            less = asyncio.Event()
            self._share.wait(less.set)
            await less.wait()


def _check_length(length: int) -> None:
    if not 0 < length <= CHUNK_BYTES:
        raise ProtocolError(f"{length} bytes were asked for at once: {CHUNK_BYTES} is the limit")


def user_of(connected: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel says; ProtocolError of another socket."""
    if connected.family != socket.AF_UNIX:
        raise ProtocolError("an application introduces itself over the service's Unix socket")
    _, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(user)


Served = FrameConnection[Message]
