# SPDX-License-Identifier: Apache-2.0
"""The answers of the page: its own files, the list of jobs, a job, the processes, a stream of what changes, a report.

All is read-only, and all of it, the page's own files too, is for those alone who may read (`access`). Nothing of a
user's is ever written into HTML here: names and errors travel as JSON, and the page's script sets them as text.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from penstock.errors import PenstockError
from penstock.job.shell.processes import ProcessNow
from penstock.observe.http_server import HttpAnswer, HttpRequest
from penstock.web.access import PageAccess, Verdict
from penstock.web.paces import processes_document
from penstock.web.report import report
from penstock.web.uses import UseLooks

_LOG = logging.getLogger(__name__)

STATIC = Path(__file__).resolve().with_name("static")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/uplot.css": ("uplot.css", "text/css; charset=utf-8"),
    "/uplot.js": ("uplot.js", "text/javascript; charset=utf-8"),
    "/graph.js": ("graph.js", "text/javascript; charset=utf-8"),
    "/flame.js": ("flame.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/tables.js": ("tables.js", "text/javascript; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
LOOK_SECONDS = 2.0
"""Between two looks whether something has changed, where a reader asks for no other pace (`every=`)."""
_LEAST_SECONDS, _MOST_SECONDS = 0.5, 60.0
_PING_SECONDS = 10.0
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"
_NO_TOKEN = b"This page needs its token: open the address that the driver's log names, or penstock.webPage().\n"
_OTHER_NAME = b"This page does not go by that name: use localhost or the machine's address.\n"


class Shown(Protocol):
    """The jobs that a page shows."""

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, the newest first."""

    def document(self, job: str, *, is_file: bool = False) -> dict[str, Any] | None:
        """A job whole, if it is known."""

    def statistics(self) -> dict[str, int]:
        """The sizes of what is kept."""


Processes = Callable[[], "Future[tuple[ProcessNow, ...]]"]
"""Tells the processes of the services; it never waits."""
Logs = Callable[[str, int], dict[str, str]]
"""Tells the last lines, so many, of each file that is kept of a job."""
_PROCESSES_SECONDS = 2.0
_LOG_LINES = 60


class PageAnswers:
    """The answers of one page; without `processes` or `logs` it has none of them."""

    def __init__(
        self, shown: Shown, access: PageAccess, processes: Processes | None = None, logs: Logs | None = None
    ) -> None:
        self._shown = shown
        self._access = access
        self._processes = processes
        self._logs = logs
        self._looks = UseLooks()
        self._written: tuple[dict[str, Any] | None, bytes] | None = None

    def statistics(self) -> dict[str, int]:
        """The sizes of what is kept, with the text of the document that was made last."""
        return {**self._shown.statistics(), "document_bytes": 0 if self._written is None else len(self._written[1])}

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request."""
        match self._access.judge(request):
            case Verdict.MISDIRECTED:
                answer = HttpAnswer(421, _TEXT, _OTHER_NAME)
            case Verdict.UNKNOWN:
                answer = HttpAnswer(401, _TEXT, _NO_TOKEN)
            case _ if request.method != "GET":
                answer = HttpAnswer(405, _TEXT, b"Nothing can be changed here.\n")
            case Verdict.ENTER:
                answer = self._enter(request)
            case _:
                answer = await self._read(request)
        return HttpAnswer(answer.status, answer.kind, answer.body, (*HEADERS, *answer.headers), answer.stream)

    def _enter(self, request: HttpRequest) -> HttpAnswer:
        rest = urlencode({name: value for name, value in request.query.items() if name != "token"})
        path = f".{request.path if request.path in FILES else '/'}"
        place = f"{path}?{rest}" if rest else path
        return HttpAnswer(303, _TEXT, headers=(("Location", place), ("Set-Cookie", self._access.cookie)))

    async def _read(self, request: HttpRequest) -> HttpAnswer:
        job = request.query.get("job", "")
        match request.path:
            case path if path in FILES:
                name, kind = FILES[path]
                return HttpAnswer(200, kind, file_of(name))
            case "/data":
                return HttpAnswer(200, _JSON, await self._told(job, {"processes", "logs"}))
            case "/events":
                return HttpAnswer(200, "text/event-stream", stream=self._events(request.query))
            case "/report":
                return self._report(job)
        return HttpAnswer(404, _TEXT, b"There is no such page.\n")

    def _report(self, job: str) -> HttpAnswer:
        document = self._shown.document(job, is_file=True)
        if document is None:
            return HttpAnswer(404, _TEXT, b"There is no such job.\n")
        headers = (("Content-Disposition", f"attachment; filename=penstock-{quote(job, safe='')}.html"),)
        return HttpAnswer(200, "text/html; charset=utf-8", report([document]).encode(), headers)

    async def _events(self, asks: Mapping[str, str]) -> AsyncIterator[bytes]:
        job, pace = asks.get("job", ""), pace_of(asks)
        last, silent = b"", 0.0
        while True:
            told, silent = await self._told(job, asks), silent + pace
            if told != last:
                last, silent = told, 0.0
                yield b"event: told\ndata: " + told + b"\n\n"
            elif silent >= _PING_SECONDS:
                silent = 0.0
                yield b": nothing new\n\n"
            await asyncio.sleep(pace)

    async def _told(self, job: str, asks: Collection[str]) -> bytes:
        jobs = self._shown.jobs()
        names = [each["job"] for each in jobs]
        wanted = job if job in names else next(iter(names), None)
        document = b"null" if wanted is None else self._document(wanted)
        processes = await self._processes_now(self._processes) if "processes" in asks and self._processes else None
        logs = list(self._logs(wanted, _LOG_LINES).items()) if "logs" in asks and self._logs and wanted else None
        parts = (_json(jobs), document, _json(processes), _json(logs))
        return b'{"jobs":%b,"document":%b,"processes":%b,"logs":%b}' % parts

    def _document(self, job: str) -> bytes:
        """A job's document as text, made once however many read it."""
        told = self._shown.document(job)
        if self._written is None or self._written[0] is not told:
            self._written = (told, _json(told))
        return self._written[1]

    async def _processes_now(self, ask: Processes) -> dict[str, Any]:
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(ask()), _PROCESSES_SECONDS)
        except (PenstockError, TimeoutError) as error:  # the JobMaster closes, or is busy
            _LOG.debug("the page's processes can't be told: %r", error)
            found = ()
        return processes_document(found, self._looks.look(found, asyncio.get_running_loop().time()))


def pace_of(asks: Mapping[str, str]) -> float:
    """The seconds between two looks that a reader asks for, within limits; the usual ones where that is no number."""
    try:
        seconds = float(asks.get("every", ""))
    except ValueError:
        seconds = LOOK_SECONDS
    return max(_LEAST_SECONDS, min(_MOST_SECONDS, seconds)) if not math.isnan(seconds) else LOOK_SECONDS


def _json(told: object) -> bytes:
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str).encode()


@functools.lru_cache
def file_of(name: str) -> bytes:
    """A file of the page's own."""
    return (STATIC / name).read_bytes()
