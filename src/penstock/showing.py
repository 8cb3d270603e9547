# SPDX-License-Identifier: Apache-2.0
"""`penstock show`: jobs out of their event logs, as a page that is served here, or as one file.

Or the processes of shuffle services, as such a page.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.errors import SettingError
from penstock.web.logs import JobLogFiles
from penstock.web.page import PagePlace, WebPage
from penstock.web.report import write_report
from penstock.web.services import ServiceProcesses
from penstock.web.store import JobStore


def show_logs(path: str, *, html: str = "", port: int = 0) -> int:
    """Serve until interrupted, or write a file; raises SettingError for what is no log, or can't be written."""
    logs = JobLogFiles.at(Path(path))
    if html:
        write_report(Path(html), logs.documents())
        return 0
    return _serve(WebPage(PagePlace(port=port), logs))


def show_services(addresses: str, *, port: int = 0) -> int:
    """Serve until interrupted; raises SettingError where one is no `host:port`."""
    named = [each for each in addresses.split(",") if each]
    wrong = [each for each in named if not each.rpartition(":")[0] or not each.rpartition(":")[2].isdigit()]
    if wrong or not named:
        raise SettingError(
            f"{', '.join(wrong) or 'nothing'} is no address: --services takes HOST:PORT of the metrics of each"
            " process, with commas between them; without it name an event log"
        )
    processes = ServiceProcesses(named)
    try:
        return _serve(WebPage(PagePlace(port=port), JobStore(), processes), "#processes")
    finally:
        processes.close()


def _serve(page: WebPage, view: str = "") -> int:
    page.open()
    try:
        sys.stdout.write(f"{page.url}{view}\n")
        sys.stdout.flush()
        page.wait()
    finally:
        page.close()
    return 0
