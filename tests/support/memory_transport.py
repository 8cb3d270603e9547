# SPDX-License-Identifier: Apache-2.0
"""A transport inside one process: deterministic, bounded, for tests and for simulations.

Two bounded pipes make a pair of endpoints. Callbacks run through `schedule` (the running loop's `call_soon` if
nothing else is given), one at a time and as long as the condition holds, like those of a socket. Bytes are copied on
both ways, so an endpoint never sees memory that its peer recycles.

`Endpoint.close` ends both directions: what was sent before can still be received, then the stream ends; sending to a
closed peer raises BrokenPipeError. Non-goals: speed, and use from several threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.connection.transport import Endpoint, split_address

CAPACITY: Final = 256 << 10
"""Bytes in flight in one direction, of the order of a socket's buffer."""

Schedule = Callable[[Callable[[], None]], object]


class _Pipe:
    """One direction: bytes that were sent and not yet received."""

    __slots__ = ("capacity", "data", "is_ended")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray()
        self.is_ended = False


class MemoryEndpoint:
    """One end of a pair; see `memory_pair`."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, peer: str, schedule: Schedule) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._peer = peer
        self._schedule = schedule
        self._callbacks: dict[str, Callable[[], None]] = {}
        self._scheduled: set[str] = set()
        self._other: MemoryEndpoint | None = None
        self._is_closed = False

    @property
    def peer(self) -> str:
        """The other end's name."""
        return self._peer

    def send_nowait(self, parts: Sequence[bytes | memoryview]) -> int:
        """Copy into the pipe as far as it has room."""
        if self._is_closed or self._outgoing.is_ended:
            raise BrokenPipeError(f"{self._peer} is closed")
        sent = 0
        for part in parts:
            room = self._outgoing.capacity - len(self._outgoing.data)
            piece = part[:room]
            self._outgoing.data += piece
            sent += len(piece)
            if len(piece) < len(part):
                break
        self._wake_other()
        return sent

    def receive_nowait(self, target: memoryview) -> int | None:
        """Copy out of the pipe."""
        if self._is_closed:
            raise OSError("the endpoint is closed")
        data = self._incoming.data
        count = min(len(data), len(target))
        if count == 0:
            return 0 if self._incoming.is_ended else None
        target[:count] = data[:count]
        del data[:count]
        self._wake_other()
        return count

    def set_readable(self, callback: Callable[[], None] | None) -> None:
        """Call back while there is something to receive."""
        self._set("readable", callback)

    def set_writable(self, callback: Callable[[], None] | None) -> None:
        """Call back while there is room."""
        self._set("writable", callback)

    def close(self) -> None:
        """End both directions."""
        if self._is_closed:
            return
        self._is_closed = True
        self._callbacks.clear()
        self._outgoing.is_ended = self._incoming.is_ended = True
        self._wake_other()
        self._other = None

    def _set(self, what: str, callback: Callable[[], None] | None) -> None:
        if callback is None:
            self._callbacks.pop(what, None)
        elif not self._is_closed:
            self._callbacks[what] = callback
            self._arm(what)

    def _holds(self, what: str) -> bool:
        if what == "readable":
            return bool(self._incoming.data) or self._incoming.is_ended
        return self._outgoing.is_ended or len(self._outgoing.data) < self._outgoing.capacity

    def _arm(self, what: str) -> None:
        if what in self._callbacks and what not in self._scheduled and self._holds(what):
            self._scheduled.add(what)
            self._schedule(lambda: self._run(what))

    def _run(self, what: str) -> None:
        self._scheduled.discard(what)
        callback = self._callbacks.get(what)
        if callback is not None and self._holds(what):
            callback()
            self._arm(what)

    def _wake_other(self) -> None:
        if self._other is not None:
            self._other._arm("readable")
            self._other._arm("writable")


def memory_pair(
    schedule: Schedule | None = None, capacity: int = CAPACITY, names: tuple[str, str] = ("memory:a", "memory:b")
) -> tuple[MemoryEndpoint, MemoryEndpoint]:
    """Two connected endpoints; each has the other's name as its peer."""
    run = schedule or asyncio.get_running_loop().call_soon
    there, back = _Pipe(capacity), _Pipe(capacity)
    first = MemoryEndpoint(back, there, names[1], run)
    second = MemoryEndpoint(there, back, names[0], run)
    first._other, second._other = second, first
    return first, second


class MemoryListener:
    """A name under which a MemoryTransport accepts."""

    def __init__(self, address: str, listeners: dict[str, Callable[[Endpoint], None]]) -> None:
        self._address = address
        self._listeners = listeners

    @property
    def address(self) -> str:
        """The address to connect to."""
        return self._address

    def close(self) -> None:
        """Stop accepting."""
        self._listeners.pop(self._address, None)


class MemoryTransport:
    """Connects endpoints by name, `memory://name`, within this object."""

    scheme = "memory"

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._listeners: dict[str, Callable[[Endpoint], None]] = {}
        self._connections = 0

    async def listen(self, address: str, on_connection: Callable[[Endpoint], None]) -> MemoryListener:
        """Accept under this name."""
        split_address(address, "memory")
        if address in self._listeners:
            raise FileExistsError(f"{address} is in use")
        self._listeners[address] = on_connection
        return MemoryListener(address, self._listeners)

    async def connect(self, address: str, timeout: float) -> MemoryEndpoint:  # noqa: ASYNC109 - the seam's signature
        """Connect at once."""
        split_address(address, "memory")
        accept = self._listeners.get(address)
        if accept is None:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        self._connections += 1
        names = (f"memory://client-{self._connections}", address)
        near, far = memory_pair(capacity=self._capacity, names=names)
        accept(far)
        return near
