# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that refer to files of older ones: nothing referred to is ever removed, nothing unreferred stays."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from effort import some_of
from penstock.checkpoint.found import UsableCheckpoint
from penstock.checkpoint.metadata import CheckpointMetadata, Chunk, PartHandle
from penstock.checkpoint.newest import NOTE
from penstock.checkpoint.removal import METADATA
from penstock.checkpoint.stamps import Stamp
from penstock.checkpoint.storage import CheckpointStorage
from underway import listed

TASKS = 3
EVENTS = 60
RETAINED = 2


class Driver:
    """A query's driver and its tasks, as far as they touch the location, beside a model of what must be there.

    A task refers to a piece in each checkpoint until it reads of it. Numbers of bytes are those that chance says.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.number = 0
        self.contents: dict[tuple[str, int], bytes] = {}
        """The bytes that were written, by file and place."""
        self.take_over()

    def take_over(self) -> None:
        """Another driver claims the location, and its tasks begin with the newest checkpoint."""
        self.storage = CheckpointStorage(str(self.folder))
        found = self.storage.claim(RETAINED)
        self.kept = {each.stamp: each.metadata for each in reversed(found.kept)}
        self.under_way: set[Stamp] = set()
        self.has_committed = False
        self.restart()

    def restart(self) -> None:
        """The tasks begin anew with the newest checkpoint: their unread pieces are those that it holds."""
        newest = self.kept[max(self.kept)] if self.kept else CheckpointMetadata(0, 0.0, {})
        self.unread = {name: self._pieces(part) for name, part in newest.parts.items()}

    def _pieces(self, part: PartHandle) -> list[Chunk]:
        return [part.with_file(chunk) for chunk in part.chunks if chunk.name == "rows"]

    def write(self) -> tuple[Stamp, dict[str, PartHandle]]:
        """All tasks store a checkpoint: what they refer to, and what is new."""
        self.number += 1
        stamp = self.storage.stamp(self.number)
        parts = {}
        for task in (f"t.{number}" for number in range(TASKS)):
            unread = self.unread.get(task, [])
            del unread[: self.chance.choice([0, 0, 1, 9])]
            new = [self.chance.randbytes(self.chance.randint(1, 9)) for _ in range(self.chance.randrange(3))]
            state = ("state", b"s" * self.chance.randrange(5))
            part = self.storage.write(stamp, task, [state, *(("rows", each) for each in (*unread, *new))])
            own = [chunk for chunk in part.chunks if not chunk.file and chunk.name == "rows"]
            self.contents |= {(part.path, chunk.offset): data for chunk, data in zip(own, new, strict=True)}
            parts[task] = part
        return stamp, parts

    def complete(self) -> None:
        """A checkpoint completes, and the oldest goes."""
        stamp, parts = self.write()
        metadata = CheckpointMetadata(stamp.number, 0.0, parts)
        self.storage.commit(metadata)
        self.kept[stamp] = metadata
        self.storage.sweep(self.kept)
        self.has_committed = True
        self.under_way.clear()
        while len(self.kept) > RETAINED:
            oldest = min(self.kept)
            del self.kept[oldest]
            self.storage.discard(oldest)

    def give_up(self) -> None:
        """One is given up, before or after its parts are stored; a part may come late."""
        stamp, parts = self.write()
        if self.chance.random() < 0.7:
            self.storage.discard(stamp)
        else:
            self.under_way.add(stamp)
        if self.chance.random() < 0.3:
            self.storage.write(stamp, "t.0", [("rows", b"late")])
            self.under_way.add(stamp)
        assert parts

    def drop_late(self) -> None:
        """The parts that are left of those are removed."""
        for stamp in self.under_way:
            self.storage.discard(stamp)
        self.under_way.clear()

    def find_damage(self) -> None:
        """The newest can't be restored from: it goes, and the tasks begin with the one before."""
        if len(self.kept) > 1 and self.has_committed:
            newest = max(self.kept)
            del self.kept[newest]
            self.storage.discard(newest)
            self.restart()

    def check(self) -> None:
        """All that is kept can be read, and once its owner has committed nothing else lies there."""
        found = {each.stamp: each for each in self.storage.history(read_through=True)}
        assert (
            found.items()
            >= {stamp: UsableCheckpoint(stamp, metadata) for stamp, metadata in self.kept.items()}.items()
        )
        assert found.keys() == self.kept.keys() or not self.has_committed
        needed = {f"{stamp}/{METADATA}" for stamp in self.kept}
        for metadata in self.kept.values():
            for part in metadata.parts.values():
                pieces = self._pieces(part)
                rows = [data for _, data in self.storage.read(part, ["rows"])] if pieces else []
                assert rows == [self.contents[piece.file, piece.offset] for piece in pieces]
                needed |= {part.path, *(piece.file for piece in pieces)}
        there = {str(path.relative_to(self.folder)) for path in listed(self.folder, "**/*") if path.is_file()}
        left = {path for path in there if Stamp.of(path.partition("/")[0]) not in {None, *self.under_way}}
        assert left >= needed
        if not self.has_committed:
            return
        assert left == needed
        folders = {path.name for path in listed(self.folder)}
        assert folders - {NOTE} == {"owners", *(path.partition("/")[0] for path in needed), *map(str, self.under_way)}


@pytest.mark.parametrize("seed", some_of(range(20), 4))
def test_what_is_referred_to_stays_and_all_else_goes(tmp_path: Path, seed: int) -> None:
    """Random checkpoints, restarts, damage and drivers: after each of them the location holds what it must."""
    chance = random.Random(seed)
    driver = Driver(tmp_path, chance)
    events = [driver.complete] * 5 + [driver.give_up, driver.drop_late, driver.restart]
    events += [driver.find_damage, driver.take_over]
    for _ in range(EVENTS):
        chance.choice(events)()
        driver.check()


def test_a_folder_without_metadata_is_offered_to_nobody(tmp_path: Path) -> None:
    """A file of a checkpoint that is gone is kept, and that checkpoint does not come back."""
    storage = CheckpointStorage(str(tmp_path))
    storage.claim()
    first = storage.write(storage.stamp(1), "t.0", [("rows", b"unread")])
    storage.write(storage.stamp(1), "t.1", [("rows", b"read")])
    storage.commit(CheckpointMetadata(1, 0.0, {"t.0": first}))
    second = storage.write(storage.stamp(2), "t.0", [("rows", first.with_file(first.chunks[0]))])
    assert second.size == 0
    storage.commit(CheckpointMetadata(2, 0.0, {"t.0": second}))
    storage.discard(storage.stamp(1))
    folder = tmp_path / str(storage.stamp(1))
    assert [path.name for path in listed(folder)] == ["t.0"]
    after = CheckpointStorage(str(tmp_path))
    assert [each.stamp for each in after.claim(9).kept] == [storage.stamp(2)]
    assert list(after.read(second)) == [("rows", b"unread")]
    after.discard(storage.stamp(2))
    assert folder.exists(), "it has not committed"
    after.commit(CheckpointMetadata(3, 0.0, {}))
    after.discard(storage.stamp(2))
    assert not folder.exists()
