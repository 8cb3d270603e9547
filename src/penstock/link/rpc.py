# SPDX-License-Identifier: Apache-2.0
"""Calls over one connection, sans-I/O: the questions that are open, and what goes to and fro.

A call has a number of its connection, by which its answer finds who asked. Beside it, all that has to survive a
connection has a number of its own: commands and reports (`outbox`), questions that may wait long (`questions`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from penstock.connection.frames import FrameReader, OutgoingFrame
from penstock.errors import ProtocolError
from penstock.link.frames import FRAME_ERRORS, call_frame, name_of, read_reply
from penstock.link.numbers import Numbered
from penstock.link.wire import Plain, to_wire
from penstock.shuffle.requests import Request

_CAPACITY = 16 << 10
"""Bytes taken in at once; a driver has a reader for each of its environments."""

Answered = Callable[[Plain], object]
"""Takes the answer to a question, an error too (`raise_for_error`)."""


class OpenCalls:
    """The questions of one connection that have no answer yet."""

    def __init__(self) -> None:
        self._calls: Numbered[Answered] = Numbered()

    def ask(self, request: Request[Any], answered: Answered, question: int = 0) -> tuple[int, bytes]:
        """The number of a question, and what to send; `answered` is called when the answer is received.

        `question` is the number under which it comes again where it is not answered; 0 for what may come twice.
        Raises ProtocolError for one that is too large.
        """
        number = self._calls.add(answered)
        try:
            return number, call_frame(number, request.METHOD, to_wire(request), question)
        except ProtocolError:
            self._calls.remove(number)
            raise

    def give_up(self, number: int) -> None:
        """The caller does not wait for this answer any more; idempotent."""
        self._calls.remove(number)

    def answer(self, body: memoryview) -> None:
        """A REPLY has come; one that came too late is dropped."""
        number, answer = read_reply(body)
        answered = self._calls.get(number)
        if answered is not None:
            self._calls.remove(number)
            answered(answer)


class FrameLogic:
    """The core of a control plane's `FrameConnection`: frames find their handlers, and go out in order.

    When nothing waits, `more` is asked for the next frame: its own are not taken before they can be sent.
    """

    def __init__(
        self,
        handlers: Mapping[int, Callable[[memoryview], None]],
        more: Callable[[], OutgoingFrame | None] = lambda: None,
    ) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.decoder = FrameReader(_CAPACITY)
        self._handlers = handlers
        self._more = more
        self._out: deque[bytes] = deque()

    def send(self, frame: bytes) -> None:
        """Send a frame after the others."""
        self._out.append(frame)
        self.wake()

    def receive(self, message: tuple[int, memoryview]) -> None:
        """Hand a frame over; raises ProtocolError for one that is not expected here, or can't be read."""
        kind, body = message
        handler = self._handlers.get(kind)
        if handler is None:
            raise ProtocolError(f"a frame of type {name_of(kind)} is not expected here")
        try:
            handler(body)
        except FRAME_ERRORS as error:
            raise ProtocolError(f"a frame of type {name_of(kind)} could not be read: {error!r}") from error

    def next_frame(self) -> OutgoingFrame | None:
        """The next frame to send."""
        if not self._out:
            return self._more()
        data = self._out.popleft()
        return OutgoingFrame((data,), len(data))

    def farewell(self, error: BaseException | None) -> OutgoingFrame | None:
        """Nothing: both ends know from the end of the connection what they have to say again."""
        return None

    def connection_lost(self, error: BaseException | None = None) -> None:
        """Nothing more goes out."""
        self._out.clear()
