# SPDX-License-Identifier: Apache-2.0
"""`penstock show`: jobs out of their event logs, as a page that is served here, or as one file."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.web.logs import JobLogFiles
from penstock.web.page import PagePlace, WebPage
from penstock.web.report import write_report


def show_logs(path: str, *, html: str = "", port: int = 0) -> int:
    """Serve until interrupted, or write a file; raises SettingError for what is no log, or can't be written."""
    logs = JobLogFiles.at(Path(path))
    if html:
        write_report(Path(html), logs.documents())
        return 0
    page = WebPage(PagePlace(port=port), logs).open()
    try:
        sys.stdout.write(f"{page.url}\n")
        sys.stdout.flush()
        page.wait()
    finally:
        page.close()
    return 0
