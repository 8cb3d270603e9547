# SPDX-License-Identifier: Apache-2.0
"""Whole queries in this process whose rows in flight are logged as they are given out (`persistInFlight`).

`test_query_shapes.py` has queries of random shapes, of which some log.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keyed_rows import BY_KEY
from penstock.checkpoint.coordinator import CheckpointOptions
from penstock.checkpoint.found import UsableCheckpoint
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.storage import CheckpointStorage
from penstock.stream import log_writer, row_log
from penstock.stream.log_writer import LogWriter
from penstock.stream.persisting import Continuous
from penstock.stream.row_log import RowLog
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, location
from slow_chains import ROWS, chain, values_in
from underway import listed

MANY = CheckpointOptions(interval=0.02, tolerable_failures=5_000, retained=4)


MANY_ROWS = 30_000
"""A query does not end while a test looks at it."""


def logging_query(folder: Path, pause: float = 200e-6, rows: int | None = ROWS, **options: Any) -> LocalQuery:
    """Two sources, a stage and a slow one with the sink, over exchanges by key; barriers overtake at once."""
    graph = chain(folder, [BY_KEY, BY_KEY], pause, rows)
    given = {"unaligned": True, "continuous": True, "options": MANY} | options
    return LocalQuery(graph, location(folder), **given)


def kept(folder: Path) -> list[CheckpointMetadata]:
    """The complete checkpoints, oldest first."""
    found = CheckpointStorage(location(folder)).history()
    return [each.metadata for each in found if isinstance(each, UsableCheckpoint)]


def logged_files(metadata: CheckpointMetadata) -> set[str]:
    """The files of logs that a checkpoint names."""
    chunks = [chunk for part in metadata.parts.values() for chunk in part.chunks]
    return {chunk.file for chunk in chunks if chunk.file.startswith("logs-")}


def has_logged(folder: Path) -> bool:
    """Tell whether the newest complete checkpoint refers to rows in a log."""
    return bool((found := kept(folder)) and logged_files(found[-1]))


def run_until_rows_are_logged(query: LocalQuery, folder: Path) -> None:
    """Until the newest complete checkpoint refers to rows in a log."""
    query.run_until(lambda: has_logged(folder), "rows in logs")


def in_flight(query: LocalQuery) -> bool:
    """Tell whether this run has completed a checkpoint, and rows are in flight in the newest."""
    return bool(query.completed) and any(name.startswith("channel/") for name in query.chunks())


def left_out(right: Callable[..., None], calls: list[int]) -> Callable[..., None]:
    """A build whose log lacks each tenth batch, and does not know it."""

    def dealt_out(self: Continuous, *given: Any) -> None:
        calls.append(1)
        if len(calls) % 10:
            right(self, *given)

    return dealt_out


def twice(right: Callable[..., None], calls: list[int]) -> Callable[..., None]:
    """A build that logs each second batch twice."""

    def dealt_out(self: Continuous, *given: Any) -> None:
        calls.append(1)
        for _ in range(1 + len(calls) % 2):
            right(self, *given)

    return dealt_out


@pytest.mark.parametrize("broken", [None, left_out, twice], ids=["sound", "left out", "twice"])
def test_a_build_whose_log_is_wrong_by_one_batch_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    """By the same look at the rows as of the runs with kills, or before that, as positions don't fit each other."""
    if broken is not None:
        monkeypatch.setattr(Continuous, "dealt_out", broken(Continuous.dealt_out, []))
    refused: list[str] = []
    with logging_query(tmp_path) as query:

        def is_refused() -> bool:
            refused[:] = [cause for cause in query.given_up if "left some out" in cause]
            return bool(refused)

        query.start()
        query.run_until(lambda: is_refused() or has_logged(tmp_path), "rows in logs")
        query.kill((2, 0))
        deadline = time.monotonic() + DEADLINE
        while not is_refused() and not query.run(time.monotonic() + 0.05):
            assert time.monotonic() < deadline, "neither ended nor refused"
    is_right = not refused and Counter(values_in(tmp_path)) == Counter(range(ROWS))
    assert is_right is (broken is None), refused[:1]


def flipped(data: bytearray, place: int) -> None:
    """One byte is another."""
    data[place] ^= 1


def cut_off(data: bytearray, place: int) -> None:
    """The end is missing."""
    del data[place:]


@pytest.mark.parametrize("damage", [flipped, cut_off, None], ids=["corrupted", "truncated", "missing"])
def test_a_damaged_log_is_named_and_the_checkpoint_before_it_is_used(
    tmp_path: Path, damage: Callable[[bytearray, int], None] | None
) -> None:
    """A file that the newest checkpoint needs and no older one; no row is lost.

    Rows that the sink published with the damaged one come once more.
    """
    found: list[CheckpointMetadata] = []

    def has_own_log() -> bool:
        found[:] = kept(tmp_path)
        return len(found) > 1 and bool(logged_files(found[-1]) - logged_files(found[-2]))

    with logging_query(tmp_path) as query:
        query.start()
        query.run_until(has_own_log, "a log of the newest checkpoint alone")
    *older, newest = kept(tmp_path)
    file = min(logged_files(newest) - set().union(*map(logged_files, older)))
    path = Path(location(tmp_path)) / file
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage is not None:
        needed = [chunk for part in newest.parts.values() for chunk in part.chunks if chunk.file == file]
        damage(data, needed[-1].offset + needed[-1].length // 2)
        path.write_bytes(data)
    unusable = CheckpointStorage(location(tmp_path)).newest()
    assert [each.stamp.number for each in unusable.unusable] == [newest.number]
    assert file in unusable.unusable[0].cause
    with logging_query(tmp_path) as query:
        query.start()
        query.run_through()
    assert set(values_in(tmp_path)) == set(range(ROWS))


def test_the_way_may_change_between_the_runs_of_a_query(tmp_path: Path) -> None:
    """Five runs, each ended with rows in flight, log or write with the checkpoint in turn; aligned ones last."""
    for run in range(5):
        with logging_query(tmp_path, rows=MANY_ROWS, continuous=run % 2 == 0) as query:
            query.start()
            query.run_until(lambda: in_flight(query), "a checkpoint of this run with rows in flight")
    with logging_query(tmp_path, 10e-6, MANY_ROWS, unaligned=False, continuous=False) as query:
        query.start()
        query.run_through()
    assert Counter(values_in(tmp_path)) == Counter(range(MANY_ROWS))


def test_a_query_that_ends_leaves_the_logs_that_its_checkpoints_need_and_no_others(tmp_path: Path) -> None:
    """After kills, which leave files of attempts that failed; a query whose data has ended needs none."""
    with logging_query(tmp_path, rows=MANY_ROWS) as query:
        query.start()
        for _ in range(3):
            enough = len(query.completed) + 3
            query.run_until(lambda enough=enough: len(query.completed) >= enough, "checkpoints")
            query.kill((1, 0))
    folder = Path(location(tmp_path))
    needed = set().union(*map(logged_files, kept(tmp_path)))
    assert {str(path.relative_to(folder)) for path in listed(folder, "logs-*/*")} == needed
    with logging_query(tmp_path, 10e-6, MANY_ROWS) as query:
        query.start()
        query.run_through()
    assert Counter(values_in(tmp_path)) == Counter(range(MANY_ROWS))
    storage = CheckpointStorage(location(tmp_path))
    (newest,) = storage.claim().kept
    storage.sweep([storage.commit(replace(newest.metadata, number=newest.stamp.number + 1))])
    assert not listed(folder, "logs-*")


def test_a_query_that_runs_long_keeps_few_files(tmp_path: Path) -> None:
    """While nothing ends: logs that no kept checkpoint needs go with the checkpoints."""
    with logging_query(tmp_path, rows=None, options=CheckpointOptions(interval=0.02, retained=2)) as query:
        query.start()
        query.run_until(lambda: len(query.completed) > 30, "thirty checkpoints")
        folder = Path(location(tmp_path))
        names = [path.name for path in listed(folder, "logs-*/*")]
        newest = query.completed[-1]
        needed = set().union(*map(logged_files, kept(tmp_path)))
        stale = [name for name in names if int(name.split(".")[-2]) < newest - 1]
        assert set(stale) <= {file.rpartition("/")[2] for file in needed}


def test_attempts_that_fail_without_a_checkpoint_leave_no_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that fails again and again grows no location: what is there is of the attempt that runs."""
    monkeypatch.setattr(log_writer, "PIECE_BYTES", 1)
    with logging_query(tmp_path, rows=None, options=CheckpointOptions(interval=None)) as query:
        query.start()
        for attempt in range(1, 4):

            def has_logged(attempt: int = attempt) -> bool:
                return any(f".{attempt - 1}." in path.name for path in logs_of(tmp_path))

            query.run_until(has_logged, "rows are logged")
            query.kill((1, 0))
            query.run_until(lambda attempt=attempt: query.attempt == attempt, "the next attempt")
            left = [path.name for path in logs_of(tmp_path) if int(path.name.split(".")[-3]) < attempt]
            assert left == []


def logs_of(folder: Path) -> list[Path]:
    """The files of logs at a location."""
    return listed(Path(location(folder)), "logs-*/*")


def test_rows_of_a_log_that_is_too_slow_wait_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log with room for almost nothing holds its task back; after a kill each row is there once."""
    monkeypatch.setattr(row_log, "MOST_WAITING", 1)
    is_held, has_room, gather = threading.Event(), RowLog.has_room.fget, LogWriter.gather
    assert has_room is not None

    def asked(log: RowLog) -> bool:
        if not (answer := has_room(log)):
            is_held.set()
        return answer

    def gathered(writer: LogWriter, *given: Any) -> None:
        is_held.wait(DEADLINE)  # the first rows are written when the task has been held back for them
        gather(writer, *given)

    monkeypatch.setattr(RowLog, "has_room", property(asked))
    monkeypatch.setattr(LogWriter, "gather", gathered)
    with logging_query(tmp_path) as query:
        query.start()
        run_until_rows_are_logged(query, tmp_path)
        query.kill((1, 1))
        query.run_through()
    assert Counter(values_in(tmp_path)) == Counter(range(ROWS))
    assert is_held.is_set()


@pytest.mark.parametrize("continuous", [False, True])
def test_all_files_of_a_checkpoint_are_on_the_disk_before_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continuous: bool
) -> None:
    """Its parts, the logs that it needs, its metadata, the names of all, and who owns the location.

    Rows that the sink has published are on the disk then, so a loss of power may not bring back an older checkpoint.
    """
    synced: dict[int, float] = {}
    right = os.fsync

    def noted(descriptor: int) -> None:
        right(descriptor)
        synced.setdefault(os.fstat(descriptor).st_ino, time.monotonic())

    monkeypatch.setattr(os, "fsync", noted)
    with logging_query(tmp_path, rows=None, continuous=continuous) as query:
        query.start()
        query.run_until(lambda: in_flight(query), "rows in flight")
        known = query.completed[-1]
    place = Path(location(tmp_path))
    (newest,) = [each for each in kept(tmp_path) if each.number == known]
    needed = {path for part in newest.parts.values() for path in (part.path, *part.referred)}
    assert any(path.startswith("logs-") for path in needed) is continuous
    (metadata,) = listed(place, f"chk-{known:012d}-*/_metadata")
    files = [*(place / path for path in needed), metadata]
    found = [*files, *(path.parent for path in files), place, place / "owners", *listed(place / "owners")]
    assert [str(path) for path in found if path.stat().st_ino not in synced] == []


def test_a_recovery_without_the_rows_in_flight_drops_those_of_the_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are missing, nothing is doubled, and the tasks say how many there were."""
    with logging_query(tmp_path) as query:
        query.start()
        run_until_rows_are_logged(query, tmp_path)
        query.recover_without_in_flight = True
        query.kill((2, 0))
        query.run_through()
        found = Counter(values_in(tmp_path))
    warned = [line for line in caplog.messages if "rows that were in flight are dropped" in line]
    dropped = sum(int(line.partition(": ")[2].split()[0]) for line in warned)
    assert dropped > 0
    assert found.total() == ROWS - dropped
    assert set(found.values()) == {1}
