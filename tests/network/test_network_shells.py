# SPDX-License-Identifier: Apache-2.0
"""Data server and connection manager together: over TCP and memory, on asyncio's loop and uvloop's."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from memory_transport import MemoryTransport
from network_parts import (
    SECRET,
    SEGMENT,
    Gate,
    Provider,
    QueueView,
    RecordingSink,
    certificate,
    partition,
    run,
    wait_until,
)
from penstock.buffer.data_types import DataType
from penstock.connection.door import DoorSettings
from penstock.connection.frame_connection import WaterMarks
from penstock.connection.handshake import Credentials, Handshake, Role, Service
from penstock.connection.opening import OpeningSettings, shake
from penstock.connection.protection import Protection
from penstock.connection.sockets import TcpTransport
from penstock.connection.transport import Endpoint, Listener, Transport
from penstock.connection.unauthenticated import MOST
from penstock.errors import (
    AuthenticationError,
    EnvironmentLostError,
    PartitionNotProducedError,
    PartitionReleasedError,
    ProducerFailedError,
    ProtocolError,
)
from penstock.network.client import ClientSettings, ConnectionManager, Route
from penstock.network.decoder import FrameDecoder
from penstock.network.flow import CREDIT
from penstock.network.frames import SERVER_TYPES, encode
from penstock.network.messages import BufferHeader, BufferResponse, ErrorResponse, PartitionRequest
from penstock.network.receiver import ChannelRequest
from penstock.network.server import DataServer, ServerSettings
from zlib_example import ZlibTransport

OPENING = ClientSettings(OpeningSettings(pauses=()))
"""One try only."""
KINDS = [("tcp", "asyncio"), ("tcp", "uvloop"), ("memory", "asyncio"), ("zlib", "asyncio"), ("zlib", "uvloop")]
KINDS += [("tls", "asyncio"), ("tls", "uvloop")]


def open_transport(kind: str, folder: Path) -> tuple[Transport, str]:
    """The transport of a kind, and where to listen."""
    if kind == "tcp":
        return TcpTransport(), "tcp://127.0.0.1:0"
    if kind == "tls":
        return Protection(certificate()).transport(), "tls://127.0.0.1:0"
    if kind == "zlib":
        return ZlibTransport(), "zlib://127.0.0.1:0"
    return MemoryTransport(), "memory://server"


def hands(role: Role, identity: str, peer: str) -> Handshake:
    """One end of a handshake between environments."""
    return Handshake(role, Service.PARTITIONS, Credentials(identity, SECRET), peer)


class House:
    """One serving environment and one consuming environment."""

    def __init__(self, transport: Transport, server: ServerSettings, client: ClientSettings) -> None:
        self.transport = transport
        self.provider = Provider()
        self.gate = Gate(channels=40)
        self.server = DataServer(transport, self.provider, Credentials("producer environment", SECRET), server)
        self.manager = ConnectionManager(transport, Credentials("consumer environment", SECRET), client)
        self.address = ""

    async def read(self, index: int = 0, *, hold: bool = False, exclusive: int | None = None) -> RecordingSink:
        """Open a channel to subpartition 0 of a partition."""
        sink = self.gate.sink(exclusive, hold=hold)
        request = ChannelRequest(partition(index), 0, 0)
        sink.channel = await self.manager.request_partition(self.address, request, sink, sink.credit)
        return sink


@asynccontextmanager
async def house(
    kind: str = "tcp",
    folder: Path = Path("/nowhere"),
    server: ServerSettings = ServerSettings(),  # noqa: B008 - frozen
    client: ClientSettings = ClientSettings(),  # noqa: B008 - frozen
) -> AsyncIterator[House]:
    """Both environments, closed and checked at the end."""
    transport, address = open_transport(kind, folder)
    built = House(transport, server, client)
    built.address = await built.server.start(address)
    try:
        yield built
    finally:
        await built.manager.close()
        await built.manager.close()
        built.server.close()
        built.server.close()
        assert built.server.statistics().connections == 0
        assert built.server.statistics().readers == 0
        assert all(view.outstanding == 0 for view in built.provider.views.values())


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_buffers_and_events_of_many_channels(kind: tuple[str, str], tmp_path: Path) -> None:
    """Twelve channels, some without exclusive buffers, get their buffers whole and in order over one connection."""

    async def main() -> None:
        async with house(kind[0], tmp_path) as here:
            views = [here.provider.register(partition(index)) for index in range(12)]
            sinks = [await here.read(index, exclusive=0 if index % 4 == 3 else 2) for index in range(12)]
            for number in range(20):
                for index, view in enumerate(views):
                    view.data(bytes([index, number]) * (SEGMENT // 2 - number))
            for view in views:
                view.event(b"end of partition")
            await wait_until(lambda: all(sink.events for sink in sinks))
            for index, sink in enumerate(sinks):
                assert sink.data == [bytes([index, number]) * (SEGMENT // 2 - number) for number in range(20)]
            assert here.manager.connections_opened == 1
            assert here.server.statistics().connections_accepted == 1
            for sink in sinks:
                assert sink.channel is not None
                sink.channel.release()
            await wait_until(lambda: all(view.is_released for view in views))
            assert len(here.gate.pool.free) == 4

    run(main, kind[1])


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_barrier_and_resume_travel(kind: tuple[str, str], tmp_path: Path) -> None:
    """The resume reaches the view; data behind the barrier comes after the resume."""

    async def main() -> None:
        async with house(kind[0], tmp_path) as here:
            view = here.provider.register(partition())
            sink = await here.read()
            view.data(b"before").event(b"barrier", DataType.ALIGNED_BARRIER).data(b"after")
            await wait_until(lambda: bool(sink.events))
            assert sink.data == [b"before"]
            assert sink.channel is not None
            sink.channel.resume()
            await wait_until(lambda: sink.data == [b"before", b"after"])
            assert view.resumed == 1

    run(main, kind[1])


def test_two_jobs_between_two_environments_use_one_connection() -> None:
    """The connection outlives the first job's channels."""

    async def main() -> None:
        async with house() as here:
            for job in range(2):
                view = here.provider.register(partition(job)).data(b"x")
                sink = await here.read(job)
                await wait_until(lambda sink=sink: bool(sink.data))  # type: ignore[misc]
                assert sink.channel is not None
                sink.channel.release()
                await wait_until(lambda view=view: view.is_released)  # type: ignore[misc]
                assert here.manager.statistics().connections == 1
            assert here.manager.connections_opened == 1
            assert here.server.statistics().connections_accepted == 1
            assert here.manager.statistics().bytes_received > 0

    run(main)


def test_concurrent_requesters_share_one_attempt() -> None:
    """Twenty channels asked for at once open one connection."""

    async def main() -> None:
        async with house() as here:
            for index in range(20):
                here.provider.register(partition(index)).data(b"x")
            sinks = await asyncio.gather(*(here.read(index) for index in range(20)))
            await wait_until(lambda: all(sink.data for sink in sinks))
            assert here.manager.connections_opened == 1

    run(main)


def test_a_failed_attempt_reaches_all_waiters_and_is_not_cached() -> None:
    """Each waiter has an error of its own; once somebody listens, the next request works."""

    async def main() -> None:
        async with house("memory") as here:
            here.address = "memory://late"
            errors = await asyncio.gather(*(here.read(index) for index in range(3)), return_exceptions=True)
            assert all(isinstance(error, EnvironmentLostError) for error in errors)
            assert len({id(error) for error in errors}) == 3
            assert "memory://late" in str(errors[0])
            second = DataServer(here.transport, here.provider, Credentials("late environment", SECRET))
            await second.start("memory://late")
            here.provider.register(partition()).data(b"x")
            sink = await here.read()
            await wait_until(lambda: bool(sink.data))
            second.close()
            await wait_until(lambda: bool(sink.errors))

    run(main)


class SlowTransport(MemoryTransport):
    """Connects when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def connect(self, address: str, timeout: float) -> Any:  # noqa: ASYNC109 - the seam's signature
        """Connect when told to."""
        await self.go.wait()
        return await super().connect(address, timeout)


def test_a_cancelled_requester_does_not_cancel_the_others() -> None:
    """The first of two requesters is cancelled while connecting: the second gets its data."""

    async def main() -> None:
        transport = SlowTransport()
        here = House(transport, ServerSettings(), ClientSettings())
        here.address = await here.server.start("memory://server")
        here.provider.register(partition(1)).data(b"x")
        first, second = asyncio.create_task(here.read(0)), asyncio.create_task(here.read(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        transport.go.set()
        sink = await second
        await wait_until(lambda: bool(sink.data))
        assert first.cancelled()
        assert here.manager.connections_opened == 1
        await here.manager.close()
        here.server.close()

    run(main)


def test_closing_the_manager_while_connecting_fails_the_waiters() -> None:
    """They get EnvironmentLostError instead of waiting for ever; later requests are refused at once."""

    async def main() -> None:
        here = House(SlowTransport(), ServerSettings(), ClientSettings())
        waiting = asyncio.create_task(here.read())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await here.manager.close()
        with pytest.raises(EnvironmentLostError, match="closed"):
            await waiting
        with pytest.raises(EnvironmentLostError, match="closed"):
            await here.read()
        here.server.close()

    run(main)


def test_one_channel_s_failure_spares_the_others() -> None:
    """A failing producer, a released partition and a broken sink: three errors, and the fourth channel reads on."""

    async def main() -> None:
        async with house() as here:
            failing, broken, fine = (here.provider.register(partition(index)) for index in (0, 2, 3))
            here.provider.errors[partition(1)] = PartitionReleasedError("job-e0.1 was released")
            sinks = [await here.read(index) for index in range(4)]
            sinks[2].on_buffer = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
            broken.data(b"x")
            failing.fail(ProducerFailedError("user code raised on host-1"))
            await wait_until(lambda: all(sink.errors for sink in sinks[:3]))
            kinds = [ProducerFailedError, PartitionReleasedError, ZeroDivisionError]
            assert [type(sink.errors[0]) for sink in sinks[:3]] == kinds
            await wait_until(lambda: broken.is_released)
            fine.data(b"still here")
            await wait_until(lambda: sinks[3].data == [b"still here"])
            assert sinks[3].errors == []
            assert here.manager.statistics().channels == 1

    run(main)


@pytest.mark.parametrize("kind", ["tcp", "memory"])
def test_a_slow_reader_does_not_stop_another(kind: str, tmp_path: Path) -> None:
    """One channel holds all its buffers; megabytes pass it on the same connection; later it goes on too."""

    async def main() -> None:
        async with house(kind, tmp_path) as here:
            slow_view, fast_view = here.provider.register(partition(0)), here.provider.register(partition(1))
            slow, fast = await here.read(0, hold=True), await here.read(1)
            slow_view.data(*[bytes(SEGMENT)] * 100)
            fast_view.data(*[bytes(SEGMENT)] * 300)
            await wait_until(lambda: len(fast.data) == 300)
            assert len(slow.data) == len(slow.held)
            assert len(slow.data) <= 6, "its two exclusive and at most all floating buffers"
            slow.hold = False
            slow.recycle_all()
            await wait_until(lambda: len(slow.data) == 100)

    run(main)


def test_cancel_while_data_is_in_flight() -> None:
    """Released in the middle of a burst: buffers come home, what is in flight is skipped, the other reads on."""

    async def main() -> None:
        async with house() as here:
            leaving_view, staying_view = here.provider.register(partition(0)), here.provider.register(partition(1))
            leaving, staying = await here.read(0), await here.read(1)
            leaving_view.data(*[bytes(SEGMENT)] * 500)
            staying_view.data(*[b"s" * SEGMENT] * 200)
            await wait_until(lambda: len(leaving.data) > 10)
            assert leaving.channel is not None
            leaving.channel.release()
            count = len(leaving.data)
            await wait_until(lambda: len(staying.data) == 200)
            await wait_until(lambda: leaving_view.is_released)
            assert len(leaving.data) == count
            assert leaving.errors == []
            assert leaving_view.outstanding == 0
            assert len(here.gate.pool.exclusive_back) == 2
            assert staying.data[-1] == b"s" * SEGMENT

    run(main)


def test_losing_the_server_fails_every_channel_once_and_is_forgotten() -> None:
    """All channels get EnvironmentLostError; a request after the server is back opens a new connection."""

    async def main() -> None:
        async with house("memory") as here:
            views = [here.provider.register(partition(index)) for index in range(3)]
            sinks = [await here.read(index) for index in range(3)]
            views[0].data(b"x")
            await wait_until(lambda: bool(sinks[0].data))
            here.server.close()
            await wait_until(lambda: all(sink.errors for sink in sinks))
            assert [len(sink.errors) for sink in sinks] == [1, 1, 1]
            assert all(isinstance(sink.errors[0], EnvironmentLostError) for sink in sinks)
            assert all(view.is_released for view in views)
            assert here.manager.statistics().connections == 0
            again = DataServer(here.transport, here.provider, Credentials("again", SECRET))
            await again.start(here.address)
            here.provider.register(partition(5)).data(b"y")
            sink = await here.read(5)
            await wait_until(lambda: sink.data == [b"y"])
            assert here.manager.connections_opened == 2
            again.close()

    run(main)


def test_losing_the_client_releases_its_views() -> None:
    """The server lets go of every view, also of requests that wait and buffers that were not written."""

    async def main() -> None:
        async with house() as here:
            view = here.provider.register(partition(0))
            sink = await here.read(0, hold=True)
            await here.read(1)
            view.data(*[bytes(SEGMENT)] * 10)
            await wait_until(lambda: len(sink.data) >= 2)
            assert here.server.statistics().readers == 2
            await here.manager.close()
            await wait_until(lambda: here.server.statistics().connections == 0)
            assert view.is_released
            here.provider.register(partition(1))
            assert len(here.provider.requests) == 2, "somebody still waited for the partition"

    run(main)


Script = Callable[[Endpoint], Coroutine[None, None, None]]


async def scripted_server(script: Script, endings: list[Endpoint]) -> tuple[MemoryTransport, Listener]:
    """A server that proves itself, waits for the first request and then does as the script says."""
    transport = MemoryTransport()
    loop = asyncio.get_running_loop()
    tasks = []

    async def serve(endpoint: Endpoint) -> None:
        endings.append(endpoint)
        await shake(endpoint, hands(Role.SERVER, "scripted", endpoint.peer))
        asked = asyncio.Event()
        endpoint.set_readable(asked.set)
        await asked.wait()
        endpoint.set_readable(None)
        await script(endpoint)

    listener = await transport.listen(
        "memory://scripted", lambda endpoint: tasks.append(loop.create_task(serve(endpoint)))
    )
    return transport, listener


def with_script(
    script: Script, then: Callable[[House, RecordingSink], Coroutine[None, None, None]], **settings: float
) -> None:
    """Run a test against a scripted server."""

    async def main() -> None:
        endings: list[Endpoint] = []
        transport, listener = await scripted_server(script, endings)
        here = House(transport, ServerSettings(), ClientSettings(**settings))
        here.address = "memory://scripted"
        await then(here, await here.read())
        await here.manager.close()
        listener.close()
        for endpoint in endings:
            endpoint.close()

    run(main)


def test_loss_in_the_middle_of_a_frame() -> None:
    """The half-received buffer is not delivered, its segment comes home, the error says where it broke."""

    async def script(endpoint: Endpoint) -> None:
        header = BufferHeader(1, 0, 0, 0, DataType.DATA, 0, 10_000)
        endpoint.send_nowait([encode(BufferResponse(header, bytes(10_000)))[:5000]])
        endpoint.close()

    async def then(here: House, sink: RecordingSink) -> None:
        await wait_until(lambda: bool(sink.errors))
        assert "in the middle of a frame" in str(sink.errors[0])
        assert sink.data == []
        assert len(here.gate.pool.exclusive_back) == 2

    with_script(script, then)


def test_a_server_that_talks_nonsense() -> None:
    """The channel gets a ProtocolError and the connection is closed."""

    async def script(endpoint: Endpoint) -> None:
        endpoint.send_nowait([b"HTTP/1.1 400 Bad Request\r\n\r\n"])

    async def then(here: House, sink: RecordingSink) -> None:
        await wait_until(lambda: bool(sink.errors))
        assert isinstance(sink.errors[0], ProtocolError)
        assert here.manager.statistics().connections == 0

    with_script(script, then)


def test_a_server_that_falls_silent_is_given_up() -> None:
    """It reads nothing and says nothing: after some unanswered intervals the channel fails."""

    async def script(_endpoint: Endpoint) -> None:
        return

    async def then(here: House, sink: RecordingSink) -> None:
        await wait_until(lambda: bool(sink.errors))
        assert "did not answer" in str(sink.errors[0])

    with_script(script, then, keepalive_interval=0.01)


def test_an_idle_connection_is_kept_alive_by_pings() -> None:
    """Many intervals without data pass, the server answers pings, and the channel still works."""

    async def main() -> None:
        async with house(client=ClientSettings(keepalive_interval=0.01)) as here:
            view = here.provider.register(partition())
            sink = await here.read()
            (connection,) = here.manager._connections.values()
            await wait_until(lambda: connection.core.last_pong >= 8)
            view.data(b"still here")
            await wait_until(lambda: sink.data == [b"still here"])
            assert sink.errors == []

    run(main)


def test_not_produced_before_the_deadline_and_just_in_time() -> None:
    """The deadline's answer is typed and names the partition; a partition that comes in time is read."""

    async def main() -> None:
        async with house(server=ServerSettings(request_timeout=0.05)) as here:
            sink = await here.read(0)
            await wait_until(lambda: bool(sink.errors))
            assert isinstance(sink.errors[0], PartitionNotProducedError)
            assert str(partition(0)) in str(sink.errors[0])
        async with house(server=ServerSettings(request_timeout=30)) as here:
            sink = await here.read(1)
            await wait_until(lambda: partition(1) in here.provider.waiting)
            here.provider.register(partition(1), QueueView().data(b"in time"))
            await wait_until(lambda: sink.data == [b"in time"])

    run(main)


def test_a_client_with_another_secret_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """It gets an AuthenticationError naming the address; the server counts and logs the peer, and serves others."""

    async def main() -> None:
        async with house() as here:
            stranger = ConnectionManager(here.transport, Credentials("stranger", b"not the secret at all"), OPENING)
            sink = here.gate.sink()
            request = ChannelRequest(partition(), 0, 0)
            with pytest.raises(AuthenticationError, match=r"127\.0\.0\.1"):
                await stranger.request_partition(here.address, request, sink, sink.credit)
            assert stranger.connections_opened == 0
            await stranger.close()
            await wait_until(lambda: here.server.statistics().connections_refused == 1)
            assert here.provider.requests == []
            here.provider.register(partition()).data(b"x")
            friend = await here.read()
            await wait_until(lambda: bool(friend.data))

    with caplog.at_level(logging.WARNING, "penstock.connection"):
        run(main)
    assert "refused a connection from tcp://127.0.0.1" in caplog.text


def test_unauthenticated_learn_nothing_and_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    """Garbage, a hello cut short, and silence past the deadline each end in a closed socket without a proof."""

    async def main() -> None:
        async with house(server=ServerSettings(door=DoorSettings(0.2))) as here:
            host, port = here.address.removeprefix("tcp://").split(":")
            loop = asyncio.get_running_loop()
            for said in (b"GET / HTTP/1.0\r\nHost: a.long.name.example.org\r\n\r\n", b"PSTK\x02", b""):
                stranger = socket.create_connection((host, int(port)))
                stranger.setblocking(False)
                await loop.sock_sendall(stranger, said)
                try:
                    answer = await loop.sock_recv(stranger, 1000)
                except ConnectionResetError:
                    answer = b""
                assert answer == b""
                stranger.close()
            assert here.server.statistics().connections_refused == 3
            assert here.server.statistics().connections_accepted == 0

    run(main)
    assert "refused a connection from tcp://127.0.0.1" in caplog.text


def test_unauthenticated_are_bounded_in_number() -> None:
    """Beyond the limit of open handshakes the first ones go."""

    async def main() -> None:
        async with house("memory", server=ServerSettings(door=DoorSettings(most=2))) as here:
            strangers = [await here.transport.connect(here.address, 1) for _ in range(4)]
            await wait_until(lambda: here.server.statistics().connections_refused == 2)
            assert [stranger.receive_nowait(memoryview(bytearray(1))) for stranger in strangers] == [0, 0, None, None]
            for stranger in strangers:
                stranger.close()

    run(main)


def test_silent_connections_lock_nobody_out() -> None:
    """More of them than handshakes may be open at once: who knows the secret gets through, at the first try."""

    async def main() -> None:
        async with house() as here:
            host, port = here.address.removeprefix("tcp://").split(":")
            strangers = []
            for _ in range(MOST + 44):
                strangers.append(socket.socket())
                strangers[-1].setblocking(False)
                await asyncio.get_running_loop().sock_connect(strangers[-1], (host, int(port)))
            manager = ConnectionManager(here.transport, Credentials("honest", SECRET), OPENING)
            await manager._connection(Route(here.address, CREDIT))
            assert manager.connections_opened == 1
            await manager.close()
            for stranger in strangers:
                stranger.close()

    run(main)


def test_who_is_turned_away_tries_again_and_says_so() -> None:
    """A peer that closes before it says anything: tried again, later each time; the error speaks of no secret."""

    async def main() -> None:
        transport = TcpTransport()
        came: list[float] = []

        def turn_away(endpoint: Endpoint) -> None:
            came.append(asyncio.get_running_loop().time())
            endpoint.close()

        listener = await transport.listen("tcp://127.0.0.1:0", turn_away)
        opening = ClientSettings(OpeningSettings(pauses=(0.01, 0.05)))
        manager = ConnectionManager(transport, Credentials("honest", SECRET), opening)
        with pytest.raises(EnvironmentLostError, match="too many connect to it at once"):
            await manager._connection(Route(listener.address, CREDIT))
        assert len(came) == 3
        assert came[2] - came[1] > came[1] - came[0]
        await manager.close()
        listener.close()

    run(main)


def test_garbage_after_the_handshake_ends_only_that_connection(caplog: pytest.LogCaptureFixture) -> None:
    """The peer is told why and closed, its views are released; the other environment's channel reads on."""

    async def main() -> None:
        async with house() as here:
            view, other = here.provider.register(partition(0)), here.provider.register(partition(1))
            sink = await here.read(1)
            rogue = await here.transport.connect(here.address, 5)
            await shake(rogue, hands(Role.CLIENT, "rogue", "server"))
            rogue.send_nowait([encode(PartitionRequest(1, partition(0), 0, 0, 1))])
            await wait_until(lambda: here.server.statistics().readers == 2)
            rogue.send_nowait([b"\xff" * 40])
            await wait_until(lambda: view.is_released)
            decoder = FrameDecoder(SERVER_TYPES)
            readable = asyncio.Event()
            rogue.set_readable(readable.set)
            await readable.wait()
            count = rogue.receive_nowait(decoder.next_target())
            rogue.close()
            assert count
            decoder.received(count)
            answer = decoder.next_message()
            assert isinstance(answer, ErrorResponse)
            assert "has come damaged" in answer.text
            other.data(b"x")
            await wait_until(lambda: sink.data == [b"x"])

    run(main)
    assert "closed the connection from tcp://127.0.0.1" in caplog.text


@pytest.mark.parametrize("kind", ["tcp", "memory"])
def test_water_marks_bound_what_waits_for_the_kernel(kind: str, tmp_path: Path) -> None:
    """A peer that grants much credit and reads nothing pins high mark plus one buffer; when it reads, all comes."""
    marks = WaterMarks(high=4 * SEGMENT, low=2 * SEGMENT)
    total = 1000

    async def main() -> None:
        async with house(kind, tmp_path, server=ServerSettings(marks=marks)) as here:
            view = here.provider.register(partition())
            peer = await here.transport.connect(here.address, 5)
            await shake(peer, hands(Role.CLIENT, "lazy", "server"))
            peer.send_nowait([encode(PartitionRequest(1, partition(), 0, 0, total))])
            await wait_until(lambda: here.server.statistics().readers == 1)
            view.data(*[bytes(SEGMENT)] * total)
            await wait_until(lambda: here.server.statistics().bytes_pending >= marks.low)
            seen = -1
            while seen != view.polled:
                seen = view.polled
                for _ in range(50):
                    await asyncio.sleep(0)
            assert view.outstanding <= 5
            assert here.server.statistics().bytes_pending < 5 * (SEGMENT + 44)
            assert view.polled < total
            target = memoryview(bytearray(1 << 20))
            await wait_until(lambda: bool(peer.receive_nowait(target) is None and view.recycled == total))
            peer.close()

    run(main)


@pytest.mark.parametrize("kind", ["tcp", "memory"])
def test_a_peer_that_takes_nothing_is_given_up(kind: str, tmp_path: Path) -> None:
    """Its view is released and what waited for it comes back; a peer that has nothing to take stays."""

    async def main() -> None:
        async with house(kind, tmp_path, server=ServerSettings(stall_timeout=0.05)) as here:
            view, other = here.provider.register(partition(0)), here.provider.register(partition(1))
            sink = await here.read(1)
            stuck = await here.transport.connect(here.address, 5)
            await shake(stuck, hands(Role.CLIENT, "stuck", "server"))
            stuck.send_nowait([encode(PartitionRequest(1, partition(0), 0, 0, 1000))])
            await wait_until(lambda: here.server.statistics().readers == 2)
            view.data(*[bytes(SEGMENT)] * 1000)
            await wait_until(lambda: view.is_released)
            assert view.outstanding == 0
            other.data(b"x")
            await wait_until(lambda: sink.data == [b"x"])
            stuck.close()

    run(main)


def test_water_marks_make_sense() -> None:
    """Low above high is refused."""
    with pytest.raises(ValueError, match="low <= high"):
        WaterMarks(high=1, low=2)


def test_a_busy_connection_does_not_starve_another() -> None:
    """While one peer is served without end, another peer's single buffer arrives soon."""

    async def main() -> None:
        async with house() as here:
            busy_view, calm_view = here.provider.register(partition(0)), here.provider.register(partition(1))
            busy = await here.read(0)
            other = House(here.transport, ServerSettings(), ClientSettings())
            other.address = here.address
            calm = await other.read(1)
            original = busy_view._recycle

            def refill() -> None:
                original()
                if len(busy_view.queue) < 100:
                    busy_view.data(*[bytes(SEGMENT)] * 10)

            busy_view._recycle = refill  # type: ignore[method-assign]
            busy_view.data(*[bytes(SEGMENT)] * 100)
            await wait_until(lambda: len(busy.data) > 200)
            before = len(busy.data)
            calm_view.data(b"calm")
            await wait_until(lambda: bool(calm.data))
            assert len(busy.data) - before < 3000
            busy_view._recycle = original  # type: ignore[method-assign]
            await other.manager.close()

    run(main)


def test_a_fault_of_ours_closes_the_connection_and_is_reported() -> None:
    """A view that raises on release does not keep the server from closing; the loop's handler hears of it."""

    async def main() -> None:
        faults: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        async with house("memory") as here:
            views = [here.provider.register(partition(index)) for index in range(2)]
            sinks = [await here.read(index) for index in range(2)]
            await wait_until(lambda: here.server.statistics().readers == 2)

            def release() -> None:
                raise RuntimeError("a bug in a view")

            views[0].release = release  # type: ignore[method-assign]
            loop.set_exception_handler(lambda _, context: faults.append(context))
            here.server.close()
            await wait_until(lambda: all(sink.errors for sink in sinks))
            assert views[1].is_released
        assert len(faults) == 1
        assert "views raised" in str(faults[0]["exception"])

    run(main)
