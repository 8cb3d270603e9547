# SPDX-License-Identifier: Apache-2.0
"""The endpoint of a process, asked over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.errors import SettingError
from penstock.observe import catalogue
from penstock.observe.endpoint import MetricsEndpoint
from penstock.observe.http_server import CALLERS, PORTS
from penstock.observe.samples import Sample
from penstock.settings import ObserveSettings
from penstock.testing import DEADLINE

ON = ObserveSettings(metrics=True)


def on_loop(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine to its end."""
    asyncio.run(asyncio.wait_for(test(), DEADLINE))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def opened(settings: ObserveSettings = ON) -> AsyncIterator[MetricsEndpoint]:
    """An endpoint with one sample."""
    endpoint = MetricsEndpoint(settings, lambda: [Sample(catalogue.JOBS[0], ("j1",), 2.5)])
    await endpoint.open()
    try:
        yield endpoint
    finally:
        await endpoint.close()
        await endpoint.close()


async def ask(address: str, head: bytes) -> bytes:
    """The whole answer to these bytes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head)
    answer = await reader.read()
    writer.close()
    return answer


def test_a_scrape_gets_the_samples_in_the_form_it_asks_for() -> None:
    """Prometheus's text unless OpenMetrics is asked for; the path may have a query."""

    async def test() -> None:
        async with opened() as endpoint:
            plain = await ask(endpoint.address, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert plain.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
            assert b'\npenstock_job_seconds{job="j1"} 2.5\n' in plain
            accept = b"Accept: application/openmetrics-text;version=1.0.0\r\n"
            opened_text = await ask(endpoint.address, b"GET /metrics HTTP/1.1\r\n" + accept + b"\r\n")
            assert b"application/openmetrics-text" in opened_text
            assert opened_text.endswith(b"# EOF\n")

    on_loop(test)


def test_other_paths_and_words_get_a_404() -> None:
    """Nothing else is there."""

    async def test() -> None:
        async with opened() as endpoint:
            for head in (b"GET / HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"\r\n\r\n"):
                assert (await ask(endpoint.address, head)).startswith(b"HTTP/1.1 404 ")

    on_loop(test)


def test_it_listens_at_the_loopback_and_only_if_told() -> None:
    """Without the setting there is no socket."""

    async def test() -> None:
        async with opened() as endpoint:
            assert endpoint.address.startswith("127.0.0.1:")
        async with opened(ObserveSettings()) as endpoint:
            assert endpoint.address == ""

    on_loop(test)


def test_processes_of_one_machine_share_sixteen_ports() -> None:
    """The second takes the next free port; where none is left, the error names the settings."""

    async def test() -> None:
        first = _free_ports()
        settings = ObserveSettings(metrics=True, metrics_port=first)
        async with contextlib.AsyncExitStack() as stack:
            found = [await stack.enter_async_context(opened(settings)) for _ in range(PORTS)]
            ports = [int(endpoint.address.rpartition(":")[2]) for endpoint in found]
            assert ports == list(range(first, first + PORTS))
            with pytest.raises(SettingError, match="metricsPort"):
                await MetricsEndpoint(settings, list).open()

    on_loop(test)


def test_callers_that_say_nothing_or_too_much_hold_nobody_up() -> None:
    """One whose head does not end is hung up on, and so is one more silent one than are kept; all are at the end."""

    async def test() -> None:
        async with opened() as endpoint:
            host, _, port = endpoint.address.rpartition(":")
            connect = functools.partial(asyncio.open_connection, host, int(port))
            endless = await connect()
            endless[1].write(b"GET /metrics HTTP/1.1\r\n" + b"x" * (1 << 17))
            await _hung_up(*endless)
            silent = [await connect() for _ in range(CALLERS)]
            await _hung_up(*await connect())
        for each in silent:
            await _hung_up(*each)

    on_loop(test)


async def _hung_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()


def _free_ports() -> int:
    """The first of sixteen ports that are free now."""
    for first in range(20_000, 60_000, 101):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + PORTS):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no sixteen free ports")
