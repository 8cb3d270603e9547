# SPDX-License-Identifier: Apache-2.0
"""Random histories of tables: our rows are those of the table's own library, and what we write it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdings
from effort import examples
from penstock_torture.tables.command import KINDS, run_history

LIBRARIES = {"iceberg": "pyiceberg", "delta": "deltalake", "folder": "polars"}


@pytest.fixture(scope="module", autouse=True)
def libraries(delta: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The libraries, used once: their threads and sockets live as long as the process."""
    polars = pytest.importorskip("polars")
    folder = tmp_path_factory.mktemp("first")
    holdings.first_use(lambda: polars.DataFrame({"a": [1]}).write_parquet(folder / "x"))
    holdings.first_use(lambda: polars.DataFrame({"a": [1]}).write_delta(str(folder / "p")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(examples(80)))
def test_rows_are_those_of_the_owner(kind: str, seed: int, tmp_path: Path) -> None:
    """Columns dropped, added again, renamed, swapped, moved, widened, rows deleted, files of many writers."""
    pytest.importorskip(LIBRARIES[kind])
    assert run_history(kind, seed, tmp_path) == []
