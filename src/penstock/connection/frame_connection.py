# SPDX-License-Identifier: Apache-2.0
"""The shell around one connection: moves bytes between an endpoint and a core, for either side.

Rules. Callbacks only, no task. A turn of reading or writing is bounded (TURN bytes), then the loop goes on with
others. The core is polled for frames until HIGH_WATER bytes wait that the kernel has not accepted, and then not again
before they are below LOW_WATER. Each frame's `recycle` is called once, when its last byte was accepted or the
connection ended. `close` leaves no callback behind, and no way from the core back to here: memory of what is over is
free at once, and not at the next garbage collection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from penstock.connection.frames import OutgoingFrame
from penstock.connection.transport import Endpoint
from penstock.errors import EnvironmentLostError, PenstockError

HIGH_WATER: Final = 2 << 20
"""Bytes taken out of views ahead of the kernel: eight segments of the usual size, so that one gather write is worth
its system call, while what a cancelled or slow connection can pin stays small."""
LOW_WATER: Final = 1 << 20
"""Polling goes on below this: half, so that the socket never runs dry while views are polled again."""
TURN: Final = 2 << 20
"""Bytes a connection may read or write before others have their turn: about a millisecond."""
GATHER: Final = 64
"""Parts offered to one write."""


M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Decoder(Protocol[M_co]):
    """Turns the bytes of one direction into messages."""

    @property
    def is_at_boundary(self) -> bool:
        """True if the stream may end here."""

    def next_target(self) -> memoryview:
        """The place for the next bytes of the stream; never empty."""

    def received(self, count: int) -> None:
        """So many bytes of the last target were filled."""

    def next_message(self) -> M_co | None:
        """The next whole message; raises ProtocolError."""


class ConnectionLogic(Protocol[M]):
    """A core of either side."""

    wake: Callable[[], None]

    @property
    def decoder(self) -> Decoder[M]:
        """The decoder of what comes."""

    def receive(self, message: M) -> None:
        """Handle one message."""

    def next_frame(self) -> OutgoingFrame | None:
        """The next frame to send."""

    def farewell(self, error: BaseException | None) -> OutgoingFrame | None:
        """The last frame for the peer before closing (error None: because we want to)."""

    def connection_lost(self, error: BaseException | None = None) -> None:
        """Nothing more will come or go."""


@dataclass(frozen=True, slots=True)
class WaterMarks:
    """When to stop polling the core and when to go on, in bytes that the transport has not accepted."""

    high: int = HIGH_WATER
    low: int = LOW_WATER

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(f"water marks {self.low} and {self.high}: 0 < low <= high is needed")


_Part = tuple[bytes | memoryview, OutgoingFrame | None]
"""A part to be written; the last part of a frame has the frame with it."""


class FrameConnection(Generic[M]):
    """One endpoint and one core, joined."""

    def __init__(
        self,
        endpoint: Endpoint,
        logic: ConnectionLogic[M],
        on_closed: Callable[[FrameConnection[M], BaseException | None], None],
        marks: WaterMarks = WaterMarks(),
    ) -> None:
        self._endpoint = endpoint
        self._logic = logic
        self._on_closed = on_closed
        self._marks = marks
        self._loop = asyncio.get_running_loop()
        self._parts: deque[_Part] = deque()
        self._pending = 0
        self._is_full = self._is_blocked = self._is_mid_frame = self._is_closed = False
        self._is_reading = True
        self._turn: asyncio.Handle | None = None
        self.bytes_sent = self.bytes_received = 0
        logic.wake = self.wake
        endpoint.set_readable(self._read_turn)
        self.wake()

    @property
    def peer(self) -> str:
        """The other end's address."""
        return self._endpoint.peer

    @property
    def pending(self) -> int:
        """Bytes taken from the core and not yet accepted by the transport."""
        return self._pending

    @property
    def is_closed(self) -> bool:
        """True once `close` was called or the connection was lost."""
        return self._is_closed

    @property
    def is_reading(self) -> bool:
        """True unless the core has stopped it, or it is closed."""
        return self._is_reading

    def set_marks(self, marks: WaterMarks) -> None:
        """Poll the core within these from now on."""
        self._marks = marks

    def stop_reading(self) -> None:
        """The core has no room for what comes next: the peer's bytes stay with the system, whose window closes.

        What was read already stays where it is: a message that the core has got is good until it goes on.
        """
        if self._is_reading:
            self._is_reading = False
            self._endpoint.set_readable(None)

    def go_on_reading(self) -> None:
        """The core has room: read what has come already, then on, in a turn of its own."""
        if not self._is_reading and not self._is_closed:
            self._is_reading = True
            self._loop.call_soon(self._go_on)

    def later(self, turn: Callable[[], None]) -> None:
        """The core goes on with a message that it got before: what that raises ends the connection, as then."""
        self._guarded(turn)

    def wake(self) -> None:
        """The core has something to send: write in a turn of its own, so that one write serves many wakes."""
        if self._turn is None and not self._is_blocked and not self._is_closed:
            self._turn = self._loop.call_soon(self._write_turn)

    def close(self, error: BaseException | None = None) -> None:
        """End the connection; the core's farewell goes out if the transport takes it without waiting. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_reading = False
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._send_farewell(error)
        self._endpoint.close()
        try:
            self._logic.connection_lost(error)
        except Exception as fault:  # noqa: BLE001 - a caller that closes several connections must get to the next one
            self._loop.call_exception_handler({"message": f"closing {self.peer}", "exception": fault})
        self._drop_pending()
        if self._logic.wake == self.wake:  # else it has another connection already
            self._logic.wake = _nobody
        self._on_closed(self, error)

    def _read_turn(self) -> None:
        self._guarded(self._read)

    def _go_on(self) -> None:
        self._guarded(self._read_again)

    def _read_again(self) -> None:
        self._handle_messages()
        if self._is_reading:
            self._endpoint.set_readable(self._read_turn)

    def _handle_messages(self) -> None:
        decoder, logic = self._logic.decoder, self._logic
        while self._is_reading and (message := decoder.next_message()) is not None:
            logic.receive(message)

    def _guarded(self, turn: Callable[[], None]) -> None:
        """A turn that raises ends the connection; a fault of ours is raised after that."""
        try:
            turn()
        except PenstockError as error:
            self.close(error)
        except OSError as error:
            self.close(_lost(self.peer, error))
        except BaseException as error:
            self.close(_lost(self.peer, error))
            raise

    def _read(self) -> None:
        budget = TURN
        decoder = self._logic.decoder
        while budget > 0 and self._is_reading:
            count = self._endpoint.receive_nowait(decoder.next_target())
            if count is None:
                return
            if count == 0:
                where = "" if decoder.is_at_boundary else " in the middle of a frame"
                self.close(
                    EnvironmentLostError(f"{self.peer} closed the connection{where}: it has ended or was lost")
                )
                return
            budget -= count
            self.bytes_received += count
            decoder.received(count)
            self._handle_messages()

    def _write_turn(self) -> None:
        self._turn = None
        self._guarded(self._write)

    def _write(self) -> None:
        budget = TURN
        while not self._is_closed:
            self._fill()
            if not self._parts:
                self._set_blocked(False)
                return
            if budget <= 0:
                self.wake()
                return
            sent = self._endpoint.send_nowait([part for part, _ in islice(self._parts, GATHER)])
            if sent == 0:
                self._set_blocked(True)
                return
            budget -= sent
            self._advance(sent)

    def _fill(self) -> None:
        if self._is_full and self._pending >= self._marks.low:
            return
        self._is_full = False
        while self._pending < self._marks.high:
            frame = self._logic.next_frame()
            if frame is None:
                return
            for part in frame.parts[:-1]:
                self._parts.append((part, None))
            self._parts.append((frame.parts[-1], frame))
            self._pending += frame.size
        self._is_full = True

    def _advance(self, sent: int) -> None:
        self._pending -= sent
        self.bytes_sent += sent
        while sent:
            part, frame = self._parts.popleft()
            if sent < len(part):
                self._parts.appendleft((memoryview(part)[sent:], frame))
                self._is_mid_frame = True
                return
            sent -= len(part)
            self._is_mid_frame = frame is None
            if frame is not None and frame.recycle is not None:
                frame.recycle()

    def _set_blocked(self, is_blocked: bool) -> None:
        if is_blocked is not self._is_blocked:
            self._is_blocked = is_blocked
            self._endpoint.set_writable(self._write_turn if is_blocked else None)

    def _send_farewell(self, error: BaseException | None) -> None:
        farewell = self._logic.farewell(error)
        if farewell is None:
            return
        parts: list[bytes | memoryview] = []
        for part, frame in self._parts if self._is_mid_frame else ():
            parts.append(part)
            if frame is not None:
                break
        with contextlib.suppress(OSError):
            self._endpoint.send_nowait([*parts, *farewell.parts])

    def _drop_pending(self) -> None:
        parts, self._parts = self._parts, deque()
        self._pending = 0
        for _, frame in parts:
            if frame is not None and frame.recycle is not None:
                frame.recycle()


def _nobody() -> None:
    """There is nothing to wake any more."""


def _lost(peer: str, error: BaseException) -> EnvironmentLostError:
    reason = str(error) or type(error).__name__
    lost = EnvironmentLostError(f"the connection to {peer} broke: {reason}; the environment there was probably lost")
    lost.__cause__ = error
    return lost
