# SPDX-License-Identifier: Apache-2.0
"""Files of logs: none is removed while a checkpoint may need it, and none stays when nobody does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from effort import some_of
from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.errors import FencedError
from penstock.checkpoint.log_files import LogName, is_before, log_folder, owner_of
from penstock.checkpoint.logged_rows import cut
from penstock.checkpoint.metadata import CheckpointMetadata, Chunk, PartHandle
from penstock.checkpoint.stamps import Owner, Stamp
from penstock.checkpoint.storage import CheckpointStorage, append
from underway import listed

OUT, IN = (ChannelKey(side, "a->b:0", 0, 0).chunk for side in ("out", "in"))
EVENTS = 60
RETAINED = 2


class Driver:
    """A driver, one task that logs and one that reads, beside what the log must still hold. A row is a byte."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.number = 0
        self.attempt = 0
        self.take_over()

    def take_over(self) -> None:
        """Another driver claims the location."""
        self.storage = CheckpointStorage(str(self.folder))
        found = self.storage.claim(RETAINED)
        self.kept = {each.stamp: each.metadata for each in reversed(found.kept)}
        self.has_committed = False
        self.number = max((stamp.number for stamp in self.kept), default=0)
        before = self.files()
        assert not self.storage.sweep(self.kept)
        assert self.files() == before, "nothing goes before it has committed"
        self.restart()

    def restart(self) -> None:
        """The tasks begin anew; the reader first has what was in flight in the newest checkpoint."""
        self.attempt += 1
        self.given = self.taken = self.logged = self.since = 0
        self.pieces: list[tuple[int, Chunk]] = []
        self.name = LogName(log_folder(self.storage.owner), "a.0", self.attempt, self.number, 0)
        parts = self.kept[max(self.kept)].parts if self.kept else {}
        self.unread = [part.with_file(chunk) for part in parts.values() for chunk in part.chunks]

    def go_on(self) -> None:
        """Rows are given and taken, and perhaps logged."""
        self.given += self.chance.randint(0, 9)
        self.unread = self.unread[self.chance.choice([0, 0, 1, 9]) :]
        if not self.unread:
            self.taken = self.chance.randint(self.taken, self.given)
        if self.chance.random() < 0.5:
            self.log()

    def log(self) -> None:
        """The given rows are written, in two pieces of one file."""
        if self.logged == self.given:
            return
        with self.storage.open_log(self.name) as file:
            while self.logged < self.given:
                rows = self.chance.randint(1, self.given - self.logged)
                chunk = append(file, OUT, self.chance.randbytes(rows))
                self.pieces.append((self.number + 1, replace(chunk, file=file.path, first=self.logged, rows=rows)))
                self.logged += rows
        self.name = replace(self.name, number=self.name.number + 1)

    def snapshot(self) -> tuple[Stamp, dict[str, PartHandle]]:
        """Both tasks acknowledge the next checkpoint."""
        self.log()
        self.number += 1
        self.name = replace(self.name, behind=self.number)
        stamp = self.storage.stamp(self.number)
        pieces = [each for when, each in self.pieces if when > self.since]
        before = self.kept[max(self.kept)].parts if self.kept else {}
        written = self.storage.write(stamp, "a.0", [("state", b"s")])
        producer = replace(written, chunks=(*written.chunks, *pieces), positions={OUT: self.given}, since=self.since)
        reader = self.storage.write(stamp, "b.0", [(chunk.name, chunk) for chunk in self.unread])
        parts = {"a.0": producer, "b.0": replace(reader, positions={IN: self.taken})}
        return stamp, cut(parts, before)

    def complete(self) -> None:
        """A checkpoint completes, and the oldest goes."""
        self.go_on()
        stamp, parts = self.snapshot()
        metadata = CheckpointMetadata(stamp.number, 0.0, parts)
        self.storage.commit(metadata)
        self.kept[stamp] = metadata
        self.storage.sweep(self.kept)
        self.has_committed = True
        if self.chance.random() < 0.8:
            self.since = self.number
        if len(self.kept) > RETAINED:
            oldest = min(self.kept)
            del self.kept[oldest]
            self.storage.discard(oldest)
            left = {path for path in self.files() - self.needed() if is_before(path.rpartition("/")[2], self.number)}
            assert not left, "nobody will need these"

    def give_up(self) -> None:
        """One is given up: what was logged for it may still be in flight in the next."""
        self.go_on()
        stamp, _ = self.snapshot()
        self.storage.discard(stamp)

    def find_damage(self) -> None:
        """The newest can't be restored from."""
        if len(self.kept) > 1 and self.has_committed:
            newest = max(self.kept)
            del self.kept[newest]
            self.storage.discard(newest)
            self.restart()

    def end(self) -> None:
        """The query ends, and another run goes on from it."""
        self.storage.end()
        assert self.files() == self.needed() or not self.has_committed
        self.take_over()

    def files(self) -> set[str]:
        """All files of logs."""
        return {str(path.relative_to(self.folder)) for path in listed(self.folder, "logs-*/*")}

    def needed(self) -> set[str]:
        """Those that complete checkpoints which are kept name."""
        named = (chunk.file for each in self.kept.values() for part in each.parts.values() for chunk in part.chunks)
        return {file for file in named if owner_of(file.partition("/")[0]) is not None}

    def check(self) -> None:
        """All that is kept can be read, and what is in flight was not removed."""
        for each in self.storage.history(read_through=True):
            assert each.stamp in self.kept
            assert not hasattr(each, "cause"), each
        waiting = {piece.file for _, piece in self.pieces if piece.first + piece.rows > self.taken}
        assert waiting <= self.files()


@pytest.mark.parametrize("seed", some_of(range(25), 4))
def test_files_of_logs_stay_as_long_as_rows_of_them_may_be_in_flight(tmp_path: Path, seed: int) -> None:
    """Random checkpoints, restarts, damage, ends and drivers: nothing that is needed goes, all else does in time."""
    chance = random.Random(seed)
    driver = Driver(tmp_path, chance)
    events = [driver.complete] * 6 + [driver.go_on] * 3 + [driver.give_up] * 2
    events += [driver.restart, driver.find_damage, driver.take_over, driver.end]
    for _ in range(EVENTS):
        chance.choice(events)()
        driver.check()


def test_a_driver_that_lost_the_location_removes_no_log(tmp_path: Path) -> None:
    """Its successor may need what it does not know."""
    first = CheckpointStorage(str(tmp_path))
    first.claim()
    with first.open_log(LogName(log_folder(first.owner), "a.0", 0, 0, 0)) as file:
        file.write(b"rows")
    CheckpointStorage(str(tmp_path)).claim()
    with pytest.raises(FencedError):
        first.end()
    assert [path.name for path in listed(tmp_path, "logs-*/*")] == ["a.0.0.0.0"]


def test_a_name_says_behind_which_checkpoint_a_file_was_begun() -> None:
    """Also where the task's own name has dots and digits; other names say nothing."""
    name = LogName("logs-000002", "stage.1-ab.7", 3, 41, 2)
    assert LogName.of("logs-000002", str(name)) == name
    assert is_before(str(name), 42)
    assert not is_before(str(name), 41)
    assert not is_before("notes.txt", 99)
    assert owner_of(log_folder("000002-ab")) == Owner(2, "ab")
    assert owner_of("logs-000002") == Owner(2), "as a version before tokens wrote it"
    assert owner_of("chk-000000000001-000001") is None
