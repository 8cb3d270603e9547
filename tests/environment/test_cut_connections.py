# SPDX-License-Identifier: Apache-2.0
"""The line to the JobMaster is cut at any byte, of the handshake too: nothing is lost, and nothing counts twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from effort import some_of
from job_fakes import ThreadLauncher, fresh_service, run_well
from penstock.connection.handshake import Credentials
from penstock.connection.protection import HostAccess, Protection
from penstock.connection.sockets import TcpTransport
from penstock.environment.control import LinkTimes, MasterLink
from penstock.environment.supervision import Supervisor
from penstock.job.shell.master import JobMaster, MasterIdentity
from penstock.link.commands import Command, ReleaseJob
from penstock.link.master import DataEnded, Heartbeat, PartitionConsumable
from penstock.shuffle import AttemptId, DatasetId, PartitionId
from penstock.testing import DEADLINE

SECRET = b"s" * 32
BYTES = some_of(range(1100), 37)
"""The handshake has 200 bytes in each direction, and what follows some hundreds."""


class CuttingProxy:
    """Lets so many bytes through each of its first connections, both directions together; all through later ones."""

    def __init__(self, target: str, most: int, cuts: int = 2) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._most = most
        self._cuts = cuts
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server
        self._pumps: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen; the address."""
        self._server = await asyncio.start_server(self._come, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """End it."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, int(self._port))
        left = [self._most if self._cuts > 0 else 1 << 30]
        self._cuts -= 1
        ends = [writer, back]
        self._writers += ends
        for source, target in ((reader, back), (there, writer)):
            pump = asyncio.create_task(self._pump(source, target, left, ends))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        left: list[int],
        ends: list[asyncio.StreamWriter],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(min(left[0], 1 << 16)):
                left[0] -= len(data)
                target.write(data)
                await target.drain()
                if left[0] <= 0:
                    break
        for end in ends:
            end.close()


class Owned:
    """An environment that notes what it is to do."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = asyncio.Event()
        self.obeyed: list[Command] = []
        self.stopped: list[str] = []

    def obey(self, command: Command, *, from_task: bool = False) -> object:
        """Note it."""
        self.obeyed.append(command)
        self._changed.set()
        return None

    async def has(self, count: int) -> None:
        """Wait until it has been told so many things."""
        while len(self.obeyed) < count:
            self._changed.clear()
            await self._changed.wait()

    def heartbeat(self) -> Heartbeat:
        """Nothing to say."""
        return Heartbeat(self._name)


@pytest.fixture(scope="module")
def master() -> Iterator[JobMaster]:
    """One for all cuts: each has an environment of its own."""
    fresh_service()
    master = JobMaster(MasterIdentity("app", SECRET), ThreadLauncher(run_well))
    master.start()
    yield master
    master.close()


@pytest.mark.parametrize("most", [size for size in BYTES if size])
def test_a_line_that_is_cut_at_any_byte(monkeypatch: pytest.MonkeyPatch, master: JobMaster, most: int) -> None:
    """Twice in a row: questions have their answers, reports come in order, commands are obeyed, all of them once."""
    name, heard = f"env-{most}", list[object]()
    monkeypatch.setattr(master._driver, "handle", heard.append)
    owned = Owned(name)

    async def run() -> None:
        listener = await TcpTransport().listen("tcp://127.0.0.1:0", lambda endpoint: endpoint.close())
        proxy = CuttingProxy(master.address, most)
        supervisor = Supervisor(owned.stopped.append)
        times = LinkTimes(DEADLINE, heartbeat=0.01, again=0.001)
        link = MasterLink(
            await proxy.start(), HostAccess(Credentials(name, SECRET), Protection()), owned, supervisor, times
        )
        try:
            await link.start(listener.address)
            for index in range(3):
                link.report(PartitionConsumable(PartitionId(DatasetId("job", 0), index, 1)))
                await link.ask(DataEnded(AttemptId("j1", 0, index, 1)))
                command = ReleaseJob(f"j{index}")
                master._call(lambda command=command: master._driver.environments.tell(name, command))  # type: ignore[misc]
            await owned.has(3)
            while len(link._outbox):  # noqa: ASYNC110 - it is taken a moment later
                await asyncio.sleep(0)
        finally:
            await supervisor.close()
            await link.close()
            await proxy.close()
            listener.close()

    asyncio.run(asyncio.wait_for(run(), 4 * DEADLINE))
    assert owned.obeyed == [ReleaseJob("j0"), ReleaseJob("j1"), ReleaseJob("j2")]
    assert [event.attempt.subtask for event in heard if isinstance(event, DataEnded)] == [0, 1, 2]
    assert [event.partition.index for event in heard if isinstance(event, PartitionConsumable)] == [0, 1, 2]
    assert owned.stopped == []
