# SPDX-License-Identifier: Apache-2.0
"""Whole queries in this process whose barriers overtake rows: what is in flight is part of the snapshot, once.

`test_query_shapes.py` has queries of random shapes.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keyed_rows import BY_KEY, KEYED
from penstock.checkpoint.channel_state import ChannelKey, unpack
from penstock.checkpoint.coordinator import CheckpointOptions
from penstock.checkpoint.metadata import CheckpointMetadata, PartHandle, decode
from penstock.checkpoint.storage import CheckpointStorage
from penstock.stream import in_flight as in_flight_of_tasks
from penstock.stream import pace
from penstock.stream.in_flight import SavedChannel, restored, rows_of
from penstock.stream.inputs import StreamInputs
from penstock.stream.outputs import StreamOutputs
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, location
from slow_chains import ROWS, chain, values_in
from underway import listed


def wait_for_rows_in_flight(query: LocalQuery, side: str) -> None:
    """Run until the newest complete checkpoint holds rows in flight of this side."""
    query.run_until(
        lambda: any(name.startswith(f"channel/{side}/") for name in query.chunks()), "a checkpoint has rows in flight"
    )


def drop_one(saved: list[SavedChannel]) -> list[SavedChannel]:
    """A build that leaves one thing out of the rows in flight."""
    return [replace(saved[0], rows=saved[0].rows[1:]), *saved[1:]] if saved else saved


def double_one(saved: list[SavedChannel]) -> list[SavedChannel]:
    """A build that writes one thing twice."""
    return [replace(saved[0], rows=[saved[0].rows[0], *saved[0].rows]), *saved[1:]] if saved else saved


@pytest.mark.parametrize("side", [StreamInputs, StreamOutputs], ids=["in", "out"])
@pytest.mark.parametrize("broken", [None, drop_one, double_one], ids=["sound", "left out", "twice"])
def test_a_build_that_is_wrong_by_one_buffer_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Any, side: type
) -> None:
    """The same look at the rows as of the runs with kills, after a restart from a snapshot with rows in flight."""
    name = "captured" if side is StreamInputs else "saved"
    right = getattr(side, name)
    if broken is not None:
        monkeypatch.setattr(side, name, lambda self: None if (saved := right(self)) is None else broken(saved))
    graph = chain(tmp_path, [BY_KEY, BY_KEY], 200e-6)
    with LocalQuery(graph, location(tmp_path), unaligned=True) as query:
        query.start()
        wait_for_rows_in_flight(query, "in" if side is StreamInputs else "out")
        query.kill((2, 0))
        query.run_through()
    assert (Counter(values_in(tmp_path)) == Counter(range(ROWS))) is (broken is None)


def test_recovery_without_the_rows_in_flight_loses_them_and_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An explicit choice: what was in flight is missing, nothing is doubled, and the tasks say how many rows."""
    graph = chain(tmp_path, [BY_KEY, BY_KEY], 200e-6)
    with LocalQuery(graph, location(tmp_path), unaligned=True) as query:
        query.start()
        wait_for_rows_in_flight(query, "out")
        query.recover_without_in_flight = True
        query.kill((2, 0))
        query.run_through()
        found = Counter(values_in(tmp_path))
    warned = [re.search(r"(\d+) rows that were in flight are dropped", line) for line in caplog.messages]
    dropped = sum(int(found_in[1]) for found_in in warned if found_in is not None)
    assert dropped > 0
    assert found.total() == ROWS - dropped
    assert set(found.values()) == {1}


def in_flight(query: LocalQuery) -> int:
    """Bytes of the rows in flight of the newest complete checkpoint."""
    return sum(length for name, length in query.chunks().items() if name.startswith("channel/"))


def test_a_query_that_fails_in_every_recovery_gets_on(tmp_path: Path) -> None:
    """Six times a task fails as soon as the first checkpoint of the recovery is complete, and restored rows wait.

    Each of these checkpoints holds the rows that are still unread, so the next attempt goes on from it. Some attempts
    fail before they have one.
    """
    graph = chain(tmp_path, [BY_KEY, BY_KEY], 200e-6)
    found = []
    with LocalQuery(graph, location(tmp_path), unaligned=True) as query:
        query.start()
        wait_for_rows_in_flight(query, "in")
        for attempt in range(6):
            before = len(query.completed)
            query.kill((2, attempt % 2))
            failed = query.attempt
            deadline = time.monotonic() + DEADLINE
            while (query.attempt == failed or len(query.completed) == before) and time.monotonic() < deadline:
                assert not query.run(time.monotonic() + 0.01)
            found.append(in_flight(query))
            if attempt % 2:
                query.kill((1, 0))
                query.run(time.monotonic() + 0.005)
        query.run_through()
    assert any(found), "no checkpoint of a recovery held rows in flight"
    assert Counter(values_in(tmp_path)) == Counter(range(ROWS))
    assert query.completed == sorted(set(query.completed))


class Begun(LocalQuery):
    """A query that keeps all checkpoints, and says how many were complete when each attempt began."""

    def start(self) -> None:
        """Start the next attempt."""
        self.begun = [*getattr(self, "begun", []), len(self.completed)]
        super().start()


def completed(folder: Path, number: int) -> CheckpointMetadata:
    """The checkpoint of this number."""
    (file,) = listed(Path(location(folder)), f"chk-{number:012d}-*/_metadata")
    return decode(file.read_bytes(), str(file))


Place = tuple[str, int]
"""Of a piece: its file and offset."""


def waiting_in(
    metadata: CheckpointMetadata, storage: CheckpointStorage
) -> dict[tuple[str, str], dict[Place, set[int]]]:
    """The numbers that wait in the inputs of each task, by task and exchange, and by piece."""
    found: dict[tuple[str, str], dict[Place, set[int]]] = {}
    for task, part in metadata.parts.items():
        for chunk in part.chunks:
            key = ChannelKey.of(chunk.name)
            if key is None or key.side == "out":
                continue
            only = PartHandle(part.path, part.size, (chunk,))
            ((_, data),) = storage.read(only)
            rows = [rows_of(each) for each in restored(chunk, unpack(key, data), KEYED)]
            place = (part.file_of(chunk), chunk.offset)
            numbers = {value for batch in rows for value in batch.column("value").to_pylist()}
            found.setdefault((task, key.edge), {})[place] = numbers
    return found


def test_a_recovery_refers_to_the_rows_that_it_has_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first checkpoint of a recovery writes none of the restored rows again, but for a piece read in part.

    A task reads its pieces in order, so there is one of these in each task at most.
    """
    monkeypatch.setattr(in_flight_of_tasks, "PIECE_BYTES", 1024)
    monkeypatch.setattr(pace, "LEAST_ROWS", 20)
    graph = chain(tmp_path, [BY_KEY, BY_KEY], 500e-6, None)
    options = CheckpointOptions(interval=0.02, tolerable_failures=99, retained=10_000)
    storage = CheckpointStorage(location(tmp_path))
    referred: list[int] = []
    with Begun(graph, location(tmp_path), unaligned=True, options=options) as query:
        query.start()
        wait_for_rows_in_flight(query, "in")
        deadline = time.monotonic() + DEADLINE
        while sum(map(bool, referred)) < 3:
            assert time.monotonic() < deadline, f"pieces that recoveries referred to: {referred}"
            query.kill((2, len(query.begun) % 2))
            attempt = query.attempt
            while (
                query.attempt == attempt or len(query.completed) == query.begun[-1]
            ) and time.monotonic() < deadline:
                query.run(time.monotonic() + 0.01)
            then, now = (
                waiting_in(completed(tmp_path, query.completed[at]), storage)
                for at in (query.begun[-1] - 1, query.begun[-1])
            )
            pieces = 0
            for task, places in then.items():
                still = now.get(task, {})
                written = set().union(*(numbers for place, numbers in still.items() if place not in places))
                twice = [place for place, numbers in places.items() if numbers & written]
                assert len(twice) <= 1, f"{task} wrote {len(twice)} of {len(places)} pieces again"
                pieces += len(places.keys() & still.keys())
            referred.append(pieces)


def test_a_checkpoint_does_not_wait_for_rows_that_a_slow_operator_holds_back(tmp_path: Path) -> None:
    """The same query: aligned no checkpoint completes before the rows in front of it are handled, unaligned many."""
    completed = {}
    for unaligned in (False, True):
        graph = chain(tmp_path / str(unaligned), [BY_KEY, BY_KEY], 1e-3, None)
        with LocalQuery(graph, location(tmp_path / str(unaligned)), unaligned=unaligned) as query:
            query.start()
            query.run(time.monotonic() + 2.0)
            completed[unaligned] = len(query.completed)
    assert completed[True] > 2 * completed[False], completed
