# SPDX-License-Identifier: Apache-2.0
"""People who have the web page open, in a process of their own: they come and leave when they are told.

Either real browsers, Debian's Chromium without a window led by Playwright, each a browser of its own; or readers of
the page's stream of events that drop what they read, which tell what the page costs its driver without the browsers'
own work beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from penstock.errors import SettingError

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
_WAIT_SECONDS = 60.0
_TAKE_BYTES = 1 << 16


class Visitors(Protocol):
    """Some who come to a page and leave it."""

    def come(self, url: str, views: Sequence[str] = ()) -> None:
        """Open the page, and keep it open; who sees its views sees one of these, the first where there are none."""

    def seen(self) -> list[int]:
        """Count, for each, the pictures of the page or the pieces of its stream since it came."""

    def leave(self) -> None:
        """Open it no more; idempotent."""


class StreamReaders:
    """Readers of the stream of events; each connection is a thread's."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._seen: list[int] = []

    def come(self, url: str, views: Sequence[str] = ()) -> None:
        """Read until told otherwise."""
        place = urlsplit(url)
        asked = parse_qs(place.query)
        token, every = asked["token"][0], asked["every"][0]
        self._seen = [0] * self._count
        asks = f"GET /events?every={every} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
        for number in range(self._count):
            self._sockets.append(socket.create_connection((place.hostname, place.port), _WAIT_SECONDS))
            self._sockets[-1].sendall(asks.encode())
            self._threads.append(threading.Thread(target=self._drop, args=(number,), daemon=True))
            self._threads[-1].start()

    def seen(self) -> list[int]:
        """The pieces that each has read."""
        return list(self._seen)

    def leave(self) -> None:
        """Hang up."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_WAIT_SECONDS)
        for each in self._sockets:
            each.close()
        self._sockets, self._threads = [], []

    def _drop(self, number: int) -> None:
        with contextlib.suppress(OSError):
            while self._sockets[number].recv(_TAKE_BYTES):
                self._seen[number] += 1


class Browsers:
    """Chromium, so many times, with one page each."""

    def __init__(self, count: int) -> None:
        from playwright.sync_api import sync_playwright

        path = shutil.which("chromium") or shutil.which("chromium-browser")
        if path is None:
            raise SettingError("there is no chromium: install Debian's package of that name")
        self._player = sync_playwright().start()
        browsers = [self._player.chromium.launch(executable_path=path, args=list(ARGUMENTS)) for _ in range(count)]
        self._pages = [browser.new_page() for browser in browsers]

    def come(self, url: str, views: Sequence[str] = ()) -> None:
        """Open it in each, and wait until it is drawn."""
        for page, view in zip(self._pages, itertools.cycle(views or ("",))):
            page.goto(f"{url}#{view}")
        for page in self._pages:
            page.locator("#graph svg").wait_for(timeout=1000 * _WAIT_SECONDS)

    def seen(self) -> list[int]:
        """The pictures that each has drawn; 0 of one that has lost its driver."""
        live = "document.getElementById('line').className === 'live' ? Number(document.body.dataset.drawn) : 0"
        return [int(page.evaluate(live)) for page in self._pages]

    def leave(self) -> None:
        """Show nothing."""
        for page in self._pages:
            page.goto("about:blank")


KINDS: dict[str, Callable[[int], Visitors]] = {"streams": StreamReaders, "browsers": Browsers}


class VisitorProcess:
    """Visitors of one of the `KINDS` in another process, so that none of their work counts as the driver's."""

    def __init__(self, pid: int, ours: Connection) -> None:
        self.pid = pid
        self._ours = ours

    def come(self, url: str, *views: str) -> None:
        """As visitors do."""
        self._say("come", url, *views)

    def seen(self) -> list[int]:
        """As visitors do."""
        found: list[int] = self._say("seen")
        return found

    def leave(self) -> None:
        """As visitors do."""
        self._say("leave")

    def _say(self, *words: str) -> Any:
        self._ours.send(words)
        if not self._ours.poll(2 * _WAIT_SECONDS):
            raise SettingError(f"the process of the page's visitors did not answer {words[0]}")
        answer, failure = self._ours.recv()
        if failure:
            raise SettingError(f"the page could not be visited: {failure}")
        return answer


@contextlib.contextmanager
def visitors(kind: str, count: int, *, is_idle: bool = False) -> Iterator[VisitorProcess]:
    """So many of a kind for a `with` block; raises SettingError where there is no browser.

    With `is_idle` they get little more of the processors than what others leave (nice 19).
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, kind, count, is_idle), daemon=True)
    process.start()
    theirs.close()
    try:
        yield VisitorProcess(process.pid or 0, ours)
    finally:
        ours.close()
        process.join(_WAIT_SECONDS)
        if process.is_alive():
            process.kill()


def _serve(asked: Connection, kind: str, count: int, is_idle: bool) -> None:
    if is_idle:
        os.nice(19)  # and those that it starts
    found: Visitors | None = None
    while True:
        try:
            words: Sequence[str] = asked.recv()
        except EOFError:
            return
        try:
            if found is None:
                found = KINDS[kind](count)
            answer = _done(found, words)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            asked.send((None, repr(error)))
        else:
            asked.send((answer, ""))


def _done(visiting: Visitors, words: Sequence[str]) -> list[int] | None:
    match words[0]:
        case "come":
            visiting.come(words[1], words[2:])
        case "seen":
            return visiting.seen()
        case _:
            visiting.leave()
    return None
