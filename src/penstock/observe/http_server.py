# SPDX-License-Identifier: Apache-2.0
"""The little of HTTP that a process serves about itself: reads, one a connection, on an event loop.

It listens at the first free port of sixteen, or at any where the port is 0. A caller has ten seconds to say what it
wants, and as long to take each piece of the answer; so many are served at once, and one more is hung up on. A head is
16 KiB at most. An answer is whole, or a stream that goes on until the caller hangs up or the server closes. Not here:
bodies of requests, connections that serve twice, TLS; who may ask is for the one to decide that answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from penstock.errors import SettingError

_LOG = logging.getLogger(__name__)

PORTS = 16
"""Tried from the port that is set: the processes of a machine share it."""
CALLERS = 16
"""Served at once, unless told otherwise."""
_SECONDS = 10.0
_HEAD_BYTES = 16 << 10
_REASONS = {
    200: "OK",
    303: "See Other",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    500: "Internal Server Error",
}


@dataclass(frozen=True, slots=True)
class HttpPlace:
    """The address to listen at; `remedy` tells the settings to look at where that can't be had."""

    what: str
    host: str
    port: int
    remedy: str
    callers: int = CALLERS


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request: its method, its path, what its address asks for, and its headers by their names in small letters."""

    method: str = ""
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer; with a `stream` it is that, and no body."""

    status: int
    kind: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncIterator[bytes] | None = None


Answering = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""Answers a request; called on the loop."""


class HttpServer:
    """One listening socket, and those who call."""

    def __init__(self, place: HttpPlace, answer: Answering) -> None:
        self._place = place
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._callers: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        """Listen; the address, `host:port`. Raises SettingError where no port can be had."""
        self._server = await self._listen()
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        """Serve no more, and hang up; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for caller in self._callers:
                caller.cancel()
            await asyncio.gather(*self._callers, return_exceptions=True)
            await server.wait_closed()

    async def _listen(self) -> asyncio.Server:
        host, first = self._place.host, self._place.port
        failure: OSError | None = None
        for port in range(first, min(first + PORTS, 1 << 16)) if first else (0,):
            try:
                return await asyncio.start_server(self._called, host, port, limit=_HEAD_BYTES)
            except OSError as error:
                failure = error
        raise SettingError(
            f"no {self._place.what} can be served at {host}:{first} or the ports after it: {failure}."
            f" {self._place.remedy}"
        )

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._callers) >= self._place.callers:
            writer.close()
            return
        self._callers.add(task)
        try:
            await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _LOG.debug("a caller for %s was not served: %r", self._place.what, error)
        except asyncio.CancelledError:
            _LOG.debug("a caller for %s is hung up on: nothing is served any more", self._place.what)
        except Exception:  # noqa: BLE001 - a fault costs one caller its answer, and no other anything
            _LOG.exception("a caller for %s got no answer", self._place.what)
        finally:
            self._callers.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_SECONDS):
            answer = await self._answer(request_of(await reader.readuntil(b"\r\n\r\n")))
            writer.write(_head(answer) + answer.body)
            await writer.drain()
        if answer.stream is None:
            return
        gone = asyncio.ensure_future(reader.read())
        try:
            while (piece := await _before(gone, answer.stream)) is not None:
                writer.write(piece)
                async with asyncio.timeout(_SECONDS):
                    await writer.drain()
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await gone


async def _before(gone: asyncio.Future[bytes], pieces: AsyncIterator[bytes]) -> bytes | None:
    """The next piece; None at the end, and as soon as the caller has hung up."""
    coming = asyncio.ensure_future(_next(pieces))
    try:
        await asyncio.wait((gone, coming), return_when=asyncio.FIRST_COMPLETED)
        return None if gone.done() else coming.result()
    finally:
        if not coming.done():
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await coming


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


def request_of(head: bytes) -> HttpRequest:
    """The request that these bytes are; one with an empty method where they are none."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3:
        return HttpRequest()
    try:
        target = urlsplit(words[1])
        query = dict(parse_qsl(target.query, max_num_fields=32))
    except ValueError:
        return HttpRequest()
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers: dict[str, str] = {}
    for name, _, value in pairs:
        headers.setdefault(name.strip().lower(), value.strip())
    return HttpRequest(words[0], target.path, query, headers)


def _head(answer: HttpAnswer) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}", f"Content-Type: {answer.kind}"]
    if answer.stream is None:
        lines.append(f"Content-Length: {len(answer.body)}")
    lines += [f"{name}: {value}" for name, value in answer.headers]
    return ("\r\n".join([*lines, "Connection: close"]) + "\r\n\r\n").encode("latin-1")
