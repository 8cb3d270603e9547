# SPDX-License-Identifier: Apache-2.0
"""The end of a manager that ends itself, as where it can't read its log: nothing is begun any more."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from penstock.connection.protection import Protection
from penstock.remote import messages as ask
from penstock.remote.manager import ManagerOptions, RemoteManager
from penstock.remote.peers import ServiceAccess, Way, asked
from penstock.remote.wire import PeerLogic


def test_a_manager_that_ends_itself_looks_for_no_worker(tmp_path: Path) -> None:
    """It closes their connections then, which is not the loss of one. Its log is closed, and its loop soon is."""
    keys = tmp_path / "keys"
    keys.touch(0o600)
    access = ServiceAccess.of("the secret of manager and workers", keys, Protection())

    async def serve(worker: str) -> None:
        manager = RemoteManager(ManagerOptions("tcp://127.0.0.1:0", tmp_path / "manager"), access)
        address = await manager.open()
        running = asyncio.ensure_future(manager.run())
        line = PeerLogic({}, {}, lambda _: None)
        await Way(address, access.worker("w1"), access.protection).connect(line)
        await asked(line, ask.Enroll("w1", worker, ("token",)))
        asyncio.get_running_loop().call_soon(sys.exit, 1)
        await running

    with socket.create_server(("127.0.0.1", 0)) as worker:
        worker.setblocking(False)
        with pytest.raises(SystemExit):
            asyncio.run(serve(f"tcp://127.0.0.1:{worker.getsockname()[1]}"))
        with pytest.raises(BlockingIOError):  # nobody has come
            worker.accept()
