# SPDX-License-Identifier: Apache-2.0
"""The frames of the remote service, and the core of each of its connections, on either side. Sans-I/O.

Calls and replies are those of the control plane (`link.frames`). Beside them:

| frame | from | body |
|---|---|---|
| WANT | writer | u32 of each block that waits: its bytes |
| PROMISE | worker | u32: so many of these may be sent, in order |
| PUSH | writer | a block (`blocks`) |
| ACK | worker | `ACK` of each block: what became of it |
| DATA | worker | stream u32, u32, and blocks |
| CREDIT | reader | stream u32, u32: so many more bytes may be sent |
| LEAVE | reader | stream u32: no more of it |
| BROKEN | worker | stream u32, and why it can't go on |

PUSH and DATA are received straight into memory of their own, which is asked for when their length is known. Their
heads vouch for themselves and the stream: blocks have checksums of their own.

A driver or task that comes in is a `Guest`: its user has a share (`connection.budgets`) of what questions and answers
take, and its questions have their turns with those of others (`connection.turns`). Nothing is read from it meanwhile.
"""

from __future__ import annotations

import functools
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

from penstock.connection.budgets import UserShare
from penstock.connection.frames import HEADER, OutgoingFrame, Seal, beginning, check, frame, read_beginning
from penstock.connection.turns import Turns
from penstock.errors import EnvironmentLostError, PenstockError, ProtocolError, QuotaError
from penstock.link.control import error_message, raise_for_error
from penstock.link.frames import FRAME_ERRORS, LinkFrameType, call_number, read_call, reply_frame
from penstock.link.rpc import OpenCalls
from penstock.link.wire import Plain, from_wire, to_wire
from penstock.shuffle.requests import Request

SCRATCH: Final = 64 << 10
GUEST_SCRATCH: Final = 4 << 10
"""Of a guest's connection: what is larger counts in its user's share."""
QUESTION_BYTES: Final = 5 << 19
"""The most of one question of a guest: the commit of a writer of 65,536 files."""
MOST_VALUES: Final = 5 << 12
"""Values in one question of a guest, lists and what is in them: five for each partition that it names.

Each costs some microseconds, so no question holds the loop for more than a few hundredths of a second.
"""
ACK: Final = struct.Struct("<QIIB3x")
"""Writer, file, number, what became of it."""
PAIR: Final = struct.Struct("<II")
SUM: Final = struct.Struct("<IQQQ")
"""File, rows, bytes, checksum."""
READ_SUM: Final = struct.Struct("<QQQQ")
"""Writer, rows, bytes, checksum."""


class BulkFrame(IntEnum):
    """The frames that are no calls."""

    WANT = 64
    PROMISE = 65
    PUSH = 66
    ACK = 67
    DATA = 68
    CREDIT = 69
    LEAVE = 70
    BROKEN = 71


OWN_MEMORY: Final[dict[int, int]] = {BulkFrame.PUSH: 0, BulkFrame.DATA: PAIR.size}
"""The bytes of these frames' bodies that their heads vouch for."""
Allocate = Callable[[int, int], memoryview]
"""Memory for the body of a frame of this type and length; raises ProtocolError for one that must not come."""


def plain_memory(_: int, length: int) -> memoryview:
    """Memory for any frame."""
    return memoryview(bytearray(length))


def no_rows(kind: int, _: int) -> memoryview:
    """Memory for blocks, where none are to come."""
    raise ProtocolError(f"a frame of type {kind} is not expected here")


@dataclass(frozen=True, slots=True)
class Guest:
    """One who comes in to ask: his user's share, and the turns of all users."""

    share: UserShare
    turns: Turns


class BulkReader:
    """A `Decoder`: cuts a byte stream into frames. Views of small ones are good until the next target."""

    def __init__(self, allocate: Allocate, share: UserShare | None = None) -> None:
        self._allocate = allocate
        self._share = share
        self._half = 0
        """The bytes of a question that are counted in the share, until there is another one."""
        self.since = 0.0
        """The moment at which a question has begun to come that has not come whole, or 0."""
        self._scratch = memoryview(bytearray(SCRATCH if share is None else GUEST_SCRATCH))
        self._start = self._end = 0
        self._kind = 0
        self._seal: Seal | None = None
        """The seal of a large frame of another kind, for all of it."""
        self._body: memoryview | None = None
        self._filled = 0

    @property
    def is_at_boundary(self) -> bool:
        """True if the stream may end here."""
        return self._body is None and self._start == self._end

    @property
    def filled(self) -> int:
        """The bytes that have come of a large frame; 0 where none is coming."""
        return 0 if self._body is None else self._filled

    def close(self) -> None:
        """Let go of all memory, and of who gives it: nothing comes any more."""
        self._allocate = plain_memory
        self._scratch = memoryview(b"")
        self._body = None
        self._let_go()

    def next_target(self) -> memoryview:
        """The place for the next bytes."""
        if self._body is not None:
            return self._body[self._filled :]
        if self._start:
            kept = self._end - self._start
            self._scratch[:kept] = self._scratch[self._start : self._end]
            self._start, self._end = 0, kept
        return self._scratch[self._end :]

    def received(self, count: int) -> None:
        """So many bytes of the last target were filled."""
        if self._body is not None:
            self._filled += count
        else:
            self._end += count

    def next_message(self) -> tuple[int, memoryview] | None:
        """The next whole frame, if it is there."""
        found = self._begin() if self._body is None else self._finish(self._body)
        if found is not None or self.is_at_boundary:
            self.since = 0.0
        elif self._kind not in OWN_MEMORY or self._body is None:
            self.since = self.since or time.monotonic()
        return found

    def _begin(self) -> tuple[int, memoryview] | None:
        """The next frame, if it is a small one that is whole; a large one gets memory of its own."""
        self._let_go()
        there = self._end - self._start
        if there < HEADER.size:
            return None
        length, kind, _, seal = read_beginning(self._scratch, self._start)
        begin, vouched = self._start + HEADER.size, OWN_MEMORY.get(kind)
        if vouched is None and length <= len(self._scratch):
            if there < length:
                return None
            found = self._scratch[begin : self._start + length]
            check(seal, found)
            self._start += length
            return kind, found
        self._seal = seal if vouched is None else None
        if vouched is not None:
            if length < HEADER.size + vouched:
                raise ProtocolError(f"a frame of type {kind} has {length} bytes: that is less than its own head")
            if there < HEADER.size + vouched:
                return None
            check(seal, self._scratch[begin : begin + vouched])
        body = self._memory(length) if vouched is None else self._allocate(kind, length - HEADER.size)
        self._filled = min(there - HEADER.size, len(body))
        body[: self._filled] = self._scratch[begin : begin + self._filled]
        self._start = begin + self._filled
        self._kind, self._body = kind, body
        return self._finish(body)

    def _finish(self, body: memoryview) -> tuple[int, memoryview] | None:
        """The frame with this body, once that is there."""
        if self._filled < len(body):
            return None
        self._body = None
        if self._seal is not None:
            check(self._seal, body)
        return self._kind, body

    def _memory(self, length: int) -> memoryview:
        """Memory for a large question."""
        if self._share is not None:
            if length > QUESTION_BYTES:
                raise ProtocolError(f"a question of {length:,} bytes has come: {QUESTION_BYTES:,} is the limit")
            if not self._share.take_half(length):
                raise ProtocolError("its user has more questions that have come in part than memory is there for")
            self._half = length
        return plain_memory(0, length - HEADER.size)

    def _let_go(self) -> None:
        if self._share is not None:
            self._share.half -= self._half
        self._half = 0


Serve = Callable[[Any], Any]
"""Answers a request: with the answer, or, if that comes later, with something that has `add_done_callback`."""


def _nothing() -> None:
    """Do nothing."""


def _nobody(_: BaseException | None) -> None:
    """Do nothing: stands for `lost` once that was called."""


class Reading(Protocol):
    """A connection that the core of one who asks can stop."""

    def stop_reading(self) -> None:
        """Read no more."""

    def go_on_reading(self) -> None:
        """Read on."""

    def later(self, turn: Callable[[], None]) -> None:
        """Go on with a message that came before: what that raises ends it."""

    def close(self, error: BaseException | None = None) -> None:
        """End the connection; `error` is the reason, if there is one."""


class PeerLogic:
    """One end of a connection: calls in both directions, and the frames between."""

    def __init__(
        self,
        serves: Mapping[type[Request[Any]], Serve],
        bulk: Mapping[int, Callable[[memoryview], None]],
        lost: Callable[[BaseException | None], None],
        allocate: Allocate = plain_memory,
        guest: Guest | None = None,
    ) -> None:
        self.wake: Callable[[], None] = _nothing
        self.connection: Reading | None = None
        """The connection of a guest, as long as there is one."""
        self.guest = guest
        self.decoder = BulkReader(allocate, None if guest is None else guest.share)
        self._serves = {kind.METHOD: (kind, serve) for kind, serve in serves.items()}
        self._bulk = bulk
        self._lost = lost
        self._calls = OpenCalls()
        self._waiting: dict[int, Callable[[BaseException], None]] = {}
        self._out: deque[OutgoingFrame] = deque()
        self._is_over = self._is_in_line = False

    def ask(self, request: Request[Any], answered: Callable[[Any], None]) -> None:
        """Ask; `answered` gets the answer, or the error in its place, also when the connection breaks or is over."""
        if self._is_over:
            answered(EnvironmentLostError("the connection is over"))
            return
        number = 0

        def came(answer: Plain) -> None:
            self._waiting.pop(number, None)
            try:
                found = from_wire(request.ANSWER, raise_for_error(answer))
            except PenstockError as error:
                found = error
            answered(found)

        number, data = self._calls.ask(request, came)
        self._waiting[number] = answered
        self.send(data)

    def send(self, data: bytes) -> None:
        """Send a whole frame after the others."""
        self.send_frame(OutgoingFrame((data,), len(data)))

    def send_bulk(self, kind: BulkFrame, body: bytes) -> None:
        """Send a frame of this type."""
        self.send(frame(kind, body))

    def send_rows(
        self, kind: BulkFrame, vouched: bytes, parts: tuple[bytes | memoryview, ...], done: Callable[[], None]
    ) -> None:
        """Send a frame of blocks, which are not copied; `vouched` goes before them."""
        size = sum(map(len, parts))
        head = beginning(kind, vouched, size)
        self.send_frame(OutgoingFrame((head, *parts), len(head) + size, done))

    def send_frame(self, outgoing: OutgoingFrame) -> None:
        """Send this frame after the others; one for a connection that is over is given back at once."""
        if self._is_over:
            if outgoing.recycle is not None:
                outgoing.recycle()
            return
        self._out.append(outgoing)
        self.wake()

    # --- for the shell

    def receive(self, message: tuple[int, memoryview]) -> None:
        """A frame has come."""
        kind, body = message
        if kind == LinkFrameType.CALL:
            self._take_turn(body)
        else:
            self._read(kind, body)

    def _read(self, kind: int, body: memoryview) -> None:
        try:
            if kind == LinkFrameType.CALL:
                self._serve(body)
            elif kind == LinkFrameType.REPLY:
                self._calls.answer(body)
            elif kind in self._bulk:
                self._bulk[kind](body)
            else:
                raise ProtocolError(f"a frame of type {kind} is not expected here")
        except FRAME_ERRORS as error:
            raise ProtocolError(f"a frame of type {kind} could not be read: {error!r}") from error

    def next_frame(self) -> OutgoingFrame | None:
        """The next frame to send."""
        return self._out.popleft() if self._out else None

    def farewell(self, error: BaseException | None) -> OutgoingFrame | None:
        """Nothing: who asked asks again elsewhere."""
        return None

    def connection_lost(self, error: BaseException | None = None) -> None:
        """Nothing more comes or goes: calls that wait for an answer get the error."""
        self._is_over = True
        out, self._out = self._out, deque()
        for each in out:
            if each.recycle is not None:
                each.recycle()
        waiting, self._waiting = self._waiting, {}
        broken = EnvironmentLostError(str(error) if error is not None else "the connection was closed")
        for answered in waiting.values():
            answered(broken)
        self._lost(error)
        # These were ways from here to here, which keep the memory of what is over: Python looks for such circles when
        # many new objects have come, whatever their bytes, and a service that serves hundreds of connections has few.
        self._lost = _nobody
        if self.guest is not None and self.connection is not None:
            self.guest.share.leave(self.connection.go_on_reading)
        self.connection = None
        self._calls = OpenCalls()
        self._serves, self._bulk = {}, {}
        self.decoder.close()

    def hang_up(self, error: BaseException) -> None:
        """End the connection, where this is its guest's side."""
        if self.connection is not None:
            self.connection.close(error)

    def _take_turn(self, body: memoryview) -> None:
        """Serve a question of a guest in turn with others: the frame stays where it is, as nothing is read then."""
        guest, connection = self.guest, self.connection
        if guest is None or connection is None:
            self._read(LinkFrameType.CALL, body)
        elif not guest.turns.take(guest.share.user, functools.partial(self._turn, connection, body)):
            self._is_in_line = True
            connection.stop_reading()

    def _turn(self, connection: Reading, body: memoryview) -> None:
        if not self._is_in_line:
            self._read(LinkFrameType.CALL, body)
            return
        self._is_in_line = False
        if not self._is_over:
            connection.go_on_reading()
            connection.later(functools.partial(self._read, LinkFrameType.CALL, body))

    def _serve(self, body: memoryview) -> None:
        try:
            number, method, message, _ = read_call(body, None if self.guest is None else MOST_VALUES)
        except QuotaError as error:
            self._reply(call_number(body), error_message(error))
            return
        try:
            kind, serve = self._serves[method]
        except KeyError:
            raise ProtocolError(f"nobody here answers {method!r:.50}") from None
        try:
            answer = serve(from_wire(kind, message))
        except ProtocolError:
            raise
        except PenstockError as error:
            self._reply(number, error_message(error))
            return
        if hasattr(answer, "add_done_callback"):
            if self.guest is not None:
                self.guest.share.questions += 1
            answer.add_done_callback(lambda done: self._reply_later(number, done))
        else:
            self._reply(number, to_wire(answer))
        self._rest()

    def _rest(self) -> None:
        """Read no more of a user who has too much of what was not answered, or not taken."""
        if self.guest is not None and self.connection is not None and self.guest.share.is_over:
            self.connection.stop_reading()
            self.guest.share.wait(self.connection.go_on_reading)

    def _reply_later(self, number: int, done: Any) -> None:
        if self.guest is not None:
            self.guest.share.less(questions=1)
        if done.cancelled():
            return
        error = done.exception()
        self._reply(number, error_message(error) if error is not None else to_wire(done.result()))

    def _reply(self, number: int, answer: Plain) -> None:
        data = reply_frame(number, answer)
        if self.guest is None:
            self.send(data)
            return
        self.guest.share.unread += len(data)
        taken = functools.partial(self.guest.share.less, unread=len(data))
        self.send_frame(OutgoingFrame((data,), len(data), taken))
