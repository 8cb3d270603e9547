# SPDX-License-Identifier: Apache-2.0
"""The page of one application, or of logs: a thread with an event loop of its own, which serves until it is closed.

Its own, because a JobMaster's loop leads tasks: a browser must never make it late. Limits: so many callers at once,
each open page being one; one more is hung up on.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.observe.http_server import HttpPlace, HttpServer
from penstock.settings import ObserveSettings
from penstock.web.access import PageAccess
from penstock.web.answers import Logs, PageAnswers, Processes, Shown

_LOG = logging.getLogger(__name__)

CALLERS = 64
_CLOSE_SECONDS = 5.0
_ANY = ("0.0.0.0", "::")  # noqa: S104 - to be told from others, and not to listen at
_REMEDY = "See spark.penstock.observe.pageHost and .pagePort"


def _nothing() -> None:
    """Do nothing when the page is closed."""


@dataclass(frozen=True, slots=True)
class PagePlace:
    """The address of a page; `token` is made where it is empty. `names` are those it may be called by."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: ObserveSettings, *names: str) -> PagePlace:
        """The place that the settings name."""
        return cls(settings.page_host, settings.page_port, settings.page_token, names)


class WebPage:
    """A page that is served; `url` has its token, `address` has not. `closed` is called once when it is closed."""

    def __init__(
        self,
        place: PagePlace,
        shown: Shown,
        processes: Processes | None = None,
        closed: Callable[[], None] = _nothing,
        logs: Logs | None = None,
    ) -> None:
        self.address = ""
        self._closed = closed
        self._place = place
        self._access = PageAccess(place.token, (place.host, socket.gethostname(), *place.names))
        self._answers = PageAnswers(shown, self._access, processes, logs)
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> WebPage:
        """Listen; raises SettingError where no port can be had."""
        self._thread = threading.Thread(target=self._run, name="penstock-page", daemon=True)
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            self._thread.join()
            self._thread = None
            raise self._failure
        return self

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        return f"{self.address}?token={self._access.token}"

    def statistics(self) -> dict[str, int]:
        """The sizes of what it keeps of jobs."""
        return self._answers.statistics()

    def wait(self) -> None:
        """Wait until it is closed."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Serve no more; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(_CLOSE_SECONDS)
            self._closed()

    @property
    def is_open(self) -> bool:
        """True until it is closed."""
        return self._thread is not None

    def _repr_html_(self) -> str:
        """A link for notebooks."""
        url, address = html.escape(self.url), html.escape(self.address)
        return f'<p>Penstock: <a href="{url}" target="_blank" rel="noopener noreferrer">{address}</a></p>'

    def __repr__(self) -> str:
        return f"<penstock page at {self.url}>"

    def _run(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for the page
            if self._opened.is_set():
                _LOG.exception("the page ended")
            self._failure = error
        finally:
            loop.close()
            self._opened.set()

    async def _serve(self) -> None:
        place = HttpPlace("page", self._place.host, self._place.port, _REMEDY, CALLERS)
        server = HttpServer(place, self._answers.answer)
        bound = await server.open()
        if self._place.host in _ANY:
            bound = f"{socket.gethostname()}:{bound.rpartition(':')[2]}"
        self.address = f"http://{bound}/"
        self._opened.set()
        await self._stop.wait()
        await server.close()
