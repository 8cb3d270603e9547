# SPDX-License-Identifier: Apache-2.0
"""A query over a folder on a mount that drops, fails and lists in parts, with kills and restarts: each row once."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from dropping_mount import Mount
from effort import some_of
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, location
from query_of_files import EXPECTED, graph, rows_in
from underway import listed


@pytest.mark.parametrize("seed", some_of(range(4), 2))
def test_each_row_is_published_once_whatever_the_mount_does(tmp_path: Path, seed: int) -> None:
    """Empty and partial listings, reads that fail, killed tasks, and a second run with another number of tasks."""
    chance, mount, expected = random.Random(seed), Mount(), Counter[str]()
    for width in (2, 3):
        with LocalQuery(graph(tmp_path, mount, width), location(tmp_path)) as query:
            query.start()
            for _ in range(25):
                act(chance, mount, query, tmp_path / "in", expected)
                query.run(time.monotonic() + chance.uniform(0.0, 0.05))
            mount.lacks, mount.errors = (lambda _: False), []
            until = time.monotonic() + DEADLINE
            while Counter(rows_in(tmp_path)) != expected and time.monotonic() < until:
                query.run(time.monotonic() + 0.05)
            query.stop()
            query.run_through()
            assert not [error for error in query.failures if not isinstance(error, EXPECTED)]
    assert Counter(rows_in(tmp_path)) == expected


def act(chance: random.Random, mount: Mount, query: LocalQuery, folder: Path, expected: Counter[str]) -> None:
    """One thing that happens to the folder, its mount or a task."""
    act = chance.choice(["new", "new", "empty", "part", "well", "error", "kill"])
    if act == "new":
        name = f"f{len(listed(folder))}"
        rows = [f"{name}:{row}" for row in range(chance.choice([1, 10, 5_000]))]
        (folder / f".{name}").write_text("".join(f"{row}\n" for row in rows))
        (folder / f".{name}").rename(folder / name)
        expected.update(rows)
    elif act == "empty":
        mount.lacks = lambda _: True
    elif act == "part":
        hidden = chance.sample(range(10), 5)
        mount.lacks = lambda name: int(name.lstrip(".f")) % 10 in hidden
    elif act == "well":
        mount.lacks = lambda _: False
    elif act == "error":
        mount.errors.append(OSError(chance.choice([5, 110, 13]), "broken"))
    else:
        query.kill(chance.choice(list(query.lines)))
