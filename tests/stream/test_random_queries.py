# SPDX-License-Identifier: Apache-2.0
"""Random whole queries through kills beside plain Python, a short form of `penstock_torture --stage-queries 300`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from effort import some_of
from penstock_torture.stages import queries
from penstock_torture.stages.queries import run_query
from penstock_torture.stages.query_verbs import Grouped, Rows, Shape


@pytest.mark.parametrize("seed", some_of(range(48), 10))
def test_a_query_gives_what_its_verbs_say(tmp_path: Path, seed: int) -> None:
    """One to four verbs with state, killed tasks, runs at other widths: the rows of the same verbs over a list."""
    words, wrong = run_query(seed, tmp_path)
    assert not wrong, f"{words}: {wrong}"


def test_a_lost_row_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that reads one row less than its list has is wrong, and the reason shows the window that is missing."""
    windows = Grouped(Shape(("k",), "total", "", "window"), Shape(), "windows", (50, 50))
    monkeypatch.setattr(queries, "random_verbs", lambda chance: [windows])
    right = queries.of_lists

    def with_another(verbs: Sequence[queries.Verb], inputs: Sequence[Rows]) -> Rows:
        return right(verbs, [[*inputs[0], {"k": 1, "s": "", "t": 5_000_000, "v": 1}]])

    monkeypatch.setattr(queries, "of_lists", with_another)
    assert run_query(1, tmp_path)[1].startswith("1 missing, such as [('k', 1), ")
