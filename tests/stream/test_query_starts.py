# SPDX-License-Identifier: Apache-2.0
"""Queries that fail ahead of their first checkpoint, a short form of `python -m penstock_torture --starts 300`."""

from __future__ import annotations

from pathlib import Path

import pytest

from effort import some_of
from penstock_torture import local_query
from penstock_torture.starts import STARTS, run_start

pytestmark = pytest.mark.usefixtures("delta")


@pytest.mark.parametrize("seed", some_of(range(7 * len(STARTS)), 13))
def test_each_row_after_a_start_comes_once(tmp_path: Path, seed: int) -> None:
    """Tasks are killed and drivers replaced, whatever the source is and however its start was named."""
    words, wrong = run_start(seed, tmp_path)
    assert not wrong, f"{words}: {wrong}"


def test_a_start_that_is_asked_for_again_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each driver's readers ask for the latest anew, rows that came in between are lost."""
    monkeypatch.setattr(local_query, "begun_at", lambda graph, positions: graph)
    _, wrong = run_start(list(STARTS).index("kafka from the latest"), tmp_path)
    assert wrong.startswith("lost Counter({")
