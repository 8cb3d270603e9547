# SPDX-License-Identifier: Apache-2.0
"""A headless browser for tests of the page: Debian's Chromium, led by Playwright.

Without one tests are skipped by name; with `PENSTOCK_NEEDS_CHROMIUM` they fail. All that goes wrong in a
page and all that it asks for is written down.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from penstock.testing import wait_until

NEEDED = "PENSTOCK_NEEDS_CHROMIUM"
_NAMES = ("chromium", "chromium-browser")
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, for as many pages as wanted."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        if os.environ.get(NEEDED):
            pytest.fail(f"{NEEDED} is set and there is no chromium")
        pytest.skip("there is no chromium: install Debian's package of that name")
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page in the browser."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Console messages and errors of scripts."""
    hosts: set[str] = field(default_factory=set)
    """The hosts that it has asked for something."""

    def drawn(self, times: int = 1) -> None:
        """Wait until it was drawn so often since it was opened."""
        self.until(f"Number(document.body.dataset.drawn || 0) >= {times}")

    def until(self, holds: str) -> None:
        """Wait until an expression holds in the page; Playwright's own wait needs `eval`, which the page forbids."""
        wait_until(lambda: bool(self.page.evaluate(holds)), holds)

    def show(self, tab: str) -> str:
        """Show a view; its text."""
        self.page.click(f"button[data-tab={tab}]")
        return self.page.inner_text("#panel")


@contextlib.contextmanager
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    """Open an address with a browser that has never been there; at the end nothing may have gone wrong."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    try:
        visit = Visit(context.new_page())
        visit.page.on("console", lambda message: visit.complaints.append(message.text))
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.on("request", lambda request: visit.hosts.add(urlsplit(request.url).netloc))
        visit.page.goto(url)
        visit.drawn()
        yield visit
    finally:
        context.close()
    assert not visit.complaints, visit.complaints
    assert visit.hosts <= {urlsplit(url).netloc, ""}, visit.hosts
