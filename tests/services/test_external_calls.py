# SPDX-License-Identifier: Apache-2.0
"""A host service that does not hear a word is told again."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.external.keys import ApplicationKey
from penstock.external.requests import ForgetJob, ReleaseKept, RenewLease
from penstock.services.external import client, service
from penstock.services.external.service import ExternalMaster, Untold
from penstock.settings import Settings
from penstock.shuffle import DatasetId, PartitionId, ShuffleMasterContext


def test_a_caller_that_is_sent_away_before_it_proves_itself_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a burst after a pause: it comes so often as there are pauses, within its deadline."""
    came = []
    monkeypatch.setattr(client.time, "sleep", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def send_away() -> None:
            for _ in client._PAUSES:
                connected, _ = listening.accept()
                came.append(connected.recv(1) != b"")
                connected.close()

        away = threading.Thread(target=send_away)
        away.start()
        with pytest.raises(ConnectionError):
            client.call(
                ApplicationKey.of("app", b"s" * 32),
                f"tcp://127.0.0.1:{listening.getsockname()[1]}",
                [RenewLease()],
                60.0,
            )
        away.join()
    assert came == [True] * len(client._PAUSES)


def test_what_a_service_could_not_be_told_to_remove_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the lease's next word; of a job that is over its partitions need not be named."""
    heard: list[Sequence[Any]] = []
    is_there = False

    def call(_: object, __: str, requests: Sequence[Any], *___: object) -> None:
        if not is_there:
            raise TimeoutError("it stands still")
        heard.append(requests)

    monkeypatch.setattr(service, "call", call)
    master = ExternalMaster(ShuffleMasterContext("app", Settings(), lambda _: None, b"s" * 32))
    first, other = (PartitionId(DatasetId(job, 0), 0, 0) for job in ("job", "other"))

    async def run() -> None:
        nonlocal is_there
        await master._have_go("tcp://h:1", Untold({first, other}))
        await master._have_go("tcp://h:1", Untold(jobs={"job"}))
        is_there = True
        for _ in range(2):
            await master._say_again("tcp://h:1")

    asyncio.run(run())
    assert heard == [[ReleaseKept((other,)), ForgetJob("job")], [RenewLease()]]
