# SPDX-License-Identifier: Apache-2.0
"""The web page, and a report of jobs as one file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.api.known_arguments import suggests_arguments

if TYPE_CHECKING:
    from penstock.spark.user_types import SparkSession
    from penstock.web.page import WebPage


@suggests_arguments
def webPage(spark: SparkSession) -> WebPage:
    """The web page of this session's jobs: `url` is its address with its token, and notebooks show the link.

    It is opened now where no setting has opened it (`spark.penstock.observe.page`). Jobs that were over before are
    not on it.
    """
    from penstock.spark.runtime import SparkRuntime

    return SparkRuntime.of(spark).page()


@contextlib.contextmanager
@suggests_arguments
def performanceReport(spark: SparkSession, path: str | Path) -> Iterator[None]:
    """Write all jobs that run in a `with` block, of this session and others of its application, as one HTML file.

    The file can be sent to others: it needs nothing else. It is written also where the block raises; a place that
    takes no file is refused before the block begins. No row is in it, but names of columns and files, and errors of
    functions, may be.
    """
    from penstock.spark.runtime import SparkRuntime
    from penstock.web.report import refuse_place, write_report

    refuse_place(Path(path))
    with SparkRuntime.of(spark).recorded() as store:
        try:
            yield
        finally:
            write_report(Path(path), store.documents())
