# SPDX-License-Identifier: Apache-2.0
"""A catalog of Iceberg tables for one use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def opened_catalog(folder: Path) -> Iterator[Any]:
    """A catalog of Iceberg tables, which lie in a folder, with the name space `db`."""
    from pyiceberg.catalog.memory import InMemoryCatalog
    from pyiceberg.utils.concurrent import ExecutorFactory

    catalog = InMemoryCatalog("here", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("db")
    try:
        yield catalog
    finally:
        catalog.close()
        ExecutorFactory.get_or_create().shutdown()  # one for the process, made anew by who needs it
        ExecutorFactory._instance = None  # noqa: SLF001
