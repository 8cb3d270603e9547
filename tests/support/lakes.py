# SPDX-License-Identifier: Apache-2.0
"""The libraries of Delta and Iceberg as fixtures: what they keep for a process is known, or goes with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdings


@pytest.fixture(scope="session")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library, used once: its runtime of threads and sockets lives as long as the process."""
    library = pytest.importorskip("deltalake")
    folder = str(tmp_path_factory.mktemp("first"))
    holdings.first_use(lambda: library.write_deltalake(folder, pa.table({"a": [1]})))
    return library


@pytest.fixture
def iceberg() -> Iterator[Any]:
    """The library's catalogs; its threads, which whoever needs them makes anew, go with the test."""
    executors = pytest.importorskip("pyiceberg.utils.concurrent").ExecutorFactory
    yield pytest.importorskip("pyiceberg.catalog.sql")
    executors.get_or_create().shutdown()
    executors._instance = None


@pytest.fixture
def catalog(iceberg: Any, tmp_path: Path) -> Iterator[Any]:
    """A catalog in a file, with one name space."""
    made = iceberg.SqlCatalog("here", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake")
    made.create_namespace("db")
    yield made
    made.close()
