# SPDX-License-Identifier: Apache-2.0
"""The shell around one connection: water marks, turns, and what happens to frames that are not written."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from memory_transport import memory_pair
from network_parts import run, wait_until
from penstock.connection.frame_connection import TURN, FrameConnection, WaterMarks
from penstock.connection.frames import OutgoingFrame
from penstock.errors import EnvironmentLostError
from penstock.network.decoder import FrameDecoder
from penstock.network.frames import CLIENT_TYPES, SERVER_TYPES, encode, outgoing
from penstock.network.messages import Message, Ping

FRAME = 1000
PING = len(encode(Ping(1)))


class Source:
    """A core with a number of frames to send, which counts what is asked of it and given back to it."""

    def __init__(self, frames: int, size: int = FRAME) -> None:
        self.left = frames
        self.payload = bytes(size - 1)
        self.recycled: list[int] = []
        self.taken = 0
        self.received: list[Message] = []
        self.lost: list[BaseException | None] = []
        self.wake: Callable[[], None] = lambda: None
        self.decoder = FrameDecoder(CLIENT_TYPES | SERVER_TYPES)

    def receive(self, message: Message) -> None:
        """Keep it."""
        self.received.append(message)

    def next_frame(self) -> OutgoingFrame | None:
        """A frame of two parts."""
        if not self.left:
            return None
        self.left -= 1
        number = self.taken
        self.taken += 1
        return OutgoingFrame((b"h", self.payload), len(self.payload) + 1, lambda: self.recycled.append(number))

    def farewell(self, error: BaseException | None) -> OutgoingFrame | None:
        """Something short that is not part of another frame."""
        return outgoing(Ping(42)) if error is None else None

    def connection_lost(self, error: BaseException | None = None) -> None:
        """Keep the reason."""
        self.lost.append(error)


class Bottomless:
    """An endpoint that accepts everything and always has more to give: a socket that is never the bottleneck."""

    peer = "bottomless"

    def __init__(self, gives: bytes = b"") -> None:
        self.gives = gives
        self.sent = self.given = 0
        self.readable: Callable[[], None] | None = None

    def send_nowait(self, parts: Sequence[bytes | memoryview]) -> int:
        """Accept all of it."""
        size = sum(map(len, parts))
        self.sent += size
        return size

    def receive_nowait(self, target: memoryview) -> int | None:
        """Fill the target."""
        if not self.gives:
            return None
        count = len(target) // len(self.gives) * len(self.gives)
        target[:count] = self.gives * (count // len(self.gives))
        self.given += count
        return count

    def set_readable(self, callback: Callable[[], None] | None) -> None:
        """Keep the callback for the test to call."""
        self.readable = callback

    def set_writable(self, callback: Callable[[], None] | None) -> None:
        """Never needed."""

    def close(self) -> None:
        """Nothing to close."""


def test_polling_stops_at_the_high_mark_and_goes_on_below_the_low_one() -> None:
    """Frames are taken up to the high mark; none while the rest drains; a whole batch again below the low mark."""

    async def main() -> None:
        near, far = memory_pair(capacity=FRAME)
        source = Source(100)
        connection = FrameConnection(near, source, lambda *_: None, WaterMarks(high=8 * FRAME, low=3 * FRAME))
        target = memoryview(bytearray(FRAME))
        refills = []
        for _ in range(90):
            before = source.taken
            count = far.receive_nowait(target)
            for _ in range(4):
                await asyncio.sleep(0)
            assert connection.pending <= 8 * FRAME
            if count and source.taken > before:
                refills.append(source.taken - before)
        assert len(refills) > 10
        assert min(refills[1:-1]) >= 5, "refilled in batches, not one by one"
        connection.close()
        far.close()

    run(main)


def test_a_turn_of_writing_is_bounded() -> None:
    """A socket that accepts everything gets about one TURN of bytes before others have their turn."""

    async def main() -> None:
        endpoint, source = Bottomless(), Source(100_000, 100_000)
        connection = FrameConnection(endpoint, source, lambda *_: None)
        seen = []
        for _ in range(5):
            await asyncio.sleep(0)
            seen.append(endpoint.sent)
        turns = [after - before for before, after in itertools.pairwise(seen)]
        assert all(0 < turn <= 3 * TURN for turn in turns)
        connection.close()

    run(main)


def test_a_turn_of_reading_is_bounded() -> None:
    """However much there is to read, one callback takes about one TURN of bytes."""

    async def main() -> None:
        endpoint, source = Bottomless(encode(Ping(1))), Source(0)
        connection = FrameConnection(endpoint, source, lambda *_: None)
        assert endpoint.readable is not None
        endpoint.readable()
        assert 0 < endpoint.given <= TURN + 4096
        assert len(source.received) == endpoint.given // PING
        connection.close()

    run(main)


def test_frames_that_were_not_written_are_recycled_once() -> None:
    """Closing in the middle of a frame gives every frame that was taken back, exactly once, in order."""

    async def main() -> None:
        near, far = memory_pair(capacity=FRAME * 2 + 500)
        source = Source(50)
        closed = []
        connection = FrameConnection(near, source, lambda which, error: closed.append((which, error)))
        await wait_until(lambda: connection.bytes_sent == FRAME * 2 + 500)
        assert source.recycled == [0, 1]
        connection.close()
        connection.close()
        assert source.recycled == list(range(source.taken))
        assert source.taken == 50
        assert source.lost == [None]
        assert closed == [(connection, None)]
        far.close()

    run(main)


def test_the_farewell_does_not_tear_a_frame() -> None:
    """Half a frame is out when the connection is closed: its rest is sent first, then the farewell, nothing else."""

    async def main() -> None:
        near, far = memory_pair(capacity=1500)
        source = Source(50)
        connection = FrameConnection(near, source, lambda *_: None)
        await wait_until(lambda: connection.bytes_sent == 1500)
        got = bytearray(1500)
        near.set_writable(None)
        assert far.receive_nowait(memoryview(got)) == 1500
        connection.close()
        rest = bytearray(1500)
        assert far.receive_nowait(memoryview(rest)) == 500 + PING
        assert bytes(rest[500 : 500 + PING]) == encode(Ping(42))
        far.close()

    run(main)


def test_a_fault_in_the_core_closes_the_connection_and_is_not_swallowed() -> None:
    """An unexpected exception while handling a message ends the connection and reaches the loop's handler."""

    async def main() -> None:
        near, far = memory_pair()
        source = Source(0)
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))

        def receive(message: Message) -> None:
            raise KeyError("a bug")

        source.receive = receive  # type: ignore[method-assign]
        connection = FrameConnection(near, source, lambda *_: None)
        far.send_nowait([encode(Ping(1))])
        await wait_until(lambda: connection.is_closed)
        assert isinstance(source.lost[0], EnvironmentLostError)
        assert isinstance(faults[0], KeyError)
        far.close()

    run(main)
