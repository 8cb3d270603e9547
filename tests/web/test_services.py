# SPDX-License-Identifier: Apache-2.0
"""The processes of shuffle services on a page of their own: what their endpoints tell, and which of them is slow."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.cli import main
from penstock.observe.endpoint import MetricsEndpoint
from penstock.observe.samples import use_samples
from penstock.observe.user_work import USERS, UserWork
from penstock.settings import ObserveSettings
from penstock.testing import DEADLINE
from penstock.web.paces import processes_document
from penstock.web.services import ServiceProcesses
from penstock.web.uses import UseLooks


@contextlib.contextmanager
def endpoint(name: str, work: UserWork) -> Iterator[str]:
    """The address of a real endpoint of a process with these users."""
    loop = asyncio.new_event_loop()
    made = MetricsEndpoint(ObserveSettings(metrics=True), lambda: use_samples(name, work.figures()))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(made.open(), loop).result(DEADLINE)
        yield made.address
    finally:
        asyncio.run_coroutine_threadsafe(made.close(), loop).result(DEADLINE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE)
        loop.close()


def test_the_user_that_waits_is_named_out_of_the_endpoints() -> None:
    """Of two processes, each with its users; one that has gone is silent, and keeps what it told."""
    first, second, looks = UserWork(), UserWork(), UseLooks()
    for work in (first, second):
        work.moved("ann", 5, 0.0)
        work.moved("bob", 5, 0.0)
    with contextlib.ExitStack() as stack:
        going = stack.enter_context(contextlib.ExitStack())
        addresses = [stack.enter_context(endpoint("one", first)), going.enter_context(endpoint("two", second))]
        processes = stack.enter_context(contextlib.closing(ServiceProcesses(addresses)))
        looks.look(processes().result(DEADLINE), 0.0)
        first.moved("ann", 1_000, 9.0)
        first.moved("bob", 9_000_000, 1.0)
        going.close()
        found = processes().result(DEADLINE)
        told = processes_document(found, looks.look(found, 10.0))
    assert "The user ann waits for one 0.9 s in each second, the others 0.0 s." in told["text"]
    assert [row[:4] for row in told["users"][:2]] == [
        ["one", "ann", 1_005.0, 100.0],
        ["one", "bob", 9_000_005.0, 9e5],
    ]
    assert [process.name for process in found] == ["one", "two"]
    assert found[0].silent < found[1].silent
    assert len(found[1].uses) == 2


def test_an_endpoint_that_does_not_answer_holds_up_nobody() -> None:
    """It takes the connection and says nothing; the others are told, and it is not asked twice at once."""
    work = UserWork()
    work.moved("ann", 5, 1.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        endpoint("one", work) as address,
        contextlib.closing(ServiceProcesses([f"127.0.0.1:{deaf.getsockname()[1]}", address])) as processes,
    ):
        looks = [processes(), processes()]
        assert looks[0] is looks[1]
        silent, told = looks[0].result(DEADLINE)
        assert not silent.uses
        assert [use.name for use in told.uses] == ["ann"]
        deaf.close()


def test_a_ledger_keeps_the_last_users() -> None:
    """More come than it keeps: the one that moved nothing for longest goes."""
    work = UserWork()
    for number in range(USERS + 1):
        work.moved(str(number), 1, 1.0)
        work.moved("0", 1, 1.0)
    kept = {use.name: use.figures["bytes"] for use in work.figures()}
    assert len(kept) == USERS
    assert kept["0"] == USERS + 2
    assert "1" not in kept


@pytest.mark.parametrize("addresses", ["somewhere", "host:port", ",", ""])
def test_the_command_says_what_an_address_is(addresses: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    assert main(["show", "--services", addresses]) == 2
    assert "HOST:PORT" in capsys.readouterr().err
