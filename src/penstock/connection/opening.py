# SPDX-License-Identifier: Apache-2.0
"""The side that connects: opens a stream, proves itself and has the other side prove itself, all within a time.

A peer that closes before it has said anything may have too many who connect at once: it is tried again, each time a
little later. One that closes in the middle has another secret, or is just being killed and closes its sockets one by
one: it is tried again, too, a few times. Limit: an opener makes one connection at a time; who needs several, or one
again and again, calls again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.connection.handshake import BrokenHandshakeError, Handshake, Role, Secrets, Service
from penstock.connection.transport import Endpoint, Transport, binding_of
from penstock.errors import EnvironmentLostError

HANDSHAKE_SECONDS = 10.0
"""The time for a handshake, on either side."""
_BROKEN_TRIES = 4
_CLOSED = (ConnectionResetError, BrokenPipeError)
"""The ways in which a peer closes that has not read what was sent."""


@dataclass(frozen=True, slots=True)
class OpeningSettings:
    """Limits of an opener, in seconds; `pauses` are between the tries of a peer that says nothing."""

    connect_timeout: float = 30.0
    handshake_timeout: float = HANDSHAKE_SECONDS
    pauses: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)


class Opener:
    """Opens connections to one service, over one transport."""

    def __init__(
        self,
        transport: Transport,
        service: Service,
        credentials: Secrets,
        settings: OpeningSettings = OpeningSettings(),
    ) -> None:
        self._transport = transport
        self._service = service
        self._credentials = credentials
        self._settings = settings

    async def open(self, address: str) -> Endpoint:
        """A stream over which both ends have proved themselves.

        Raises EnvironmentLostError where nothing answers (its cause is an OSError), AuthenticationError or
        SettingError.
        """
        broken = 0
        for pause in self._settings.pauses:
            try:
                return await self._try(address)
            except BrokenHandshakeError:
                broken += 1
                if broken == _BROKEN_TRIES:
                    raise
            except EnvironmentLostError as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, _CLOSED):
                    raise
            await asyncio.sleep(pause)
        return await self._try(address)

    async def _try(self, address: str) -> Endpoint:
        timeout = self._settings.connect_timeout
        try:
            endpoint = await self._transport.connect(address, timeout)
        except OSError as error:
            reason = str(error) or f"no answer in {timeout:g} s"
            raise EnvironmentLostError(f"cannot connect to {address}: {reason}") from error
        try:
            async with asyncio.timeout(self._settings.handshake_timeout):
                await shake(endpoint, Handshake(Role.CLIENT, self._service, self._credentials, address))
        except TimeoutError as error:
            endpoint.close()
            raise EnvironmentLostError(f"the peer at {address} did not finish the handshake in time") from error
        except BaseException:
            endpoint.close()
            raise
        return endpoint


async def shake(endpoint: Endpoint, handshake: Handshake) -> None:
    """Run a handshake to its end; the caller sets the deadline and closes on failure.

    Raises AuthenticationError, or EnvironmentLostError where the peer closes before it has said anything.
    """
    try:
        await _send_all(endpoint, handshake.outgoing())
        handshake.bind(binding_of(endpoint))
        while not handshake.is_done:
            handshake.feed(await _receive(endpoint, handshake.missing))
            await _send_all(endpoint, handshake.outgoing())
    except OSError as error:
        raise handshake.closed() from error


async def _send_all(endpoint: Endpoint, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        sent = endpoint.send_nowait([rest])
        rest = rest[sent:]
        if sent == 0:
            await _ready(endpoint.set_writable)


async def _receive(endpoint: Endpoint, size: int) -> bytes:
    """At most so many bytes; none where the peer has closed."""
    data = bytearray(size)
    while (count := endpoint.receive_nowait(memoryview(data))) is None:
        await _ready(endpoint.set_readable)
    return bytes(data[:count])


async def _ready(register: Callable[[Callable[[], None] | None], None]) -> None:
    future = asyncio.get_running_loop().create_future()
    register(lambda: None if future.done() else future.set_result(None))
    try:
        await future
    finally:
        register(None)
