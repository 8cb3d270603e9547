# SPDX-License-Identifier: Apache-2.0
"""Drivers that claim one location at the same moment, call by call in any order: at most one of them commits."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from effort import some_of
from failing_files import gated
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.found import UsableCheckpoint
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.stamps import Stamp
from penstock.checkpoint.storage import CheckpointStorage
from penstock.testing import DEADLINE

COMMITS = 2
RETAINED = 2


class Turns:
    """Lets one thread at a time do one call; who is next is the test's choice."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, bool] = {}
        self._running = 0

    def begin(self) -> None:
        """A thread is going to start."""
        self._running += 1

    def wait(self, who: int) -> None:
        """Wait for this thread's turn."""
        with self._changed:
            self._waiting[who] = False
            self._running -= 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._waiting[who], DEADLINE)
            del self._waiting[who]

    def end(self) -> None:
        """A thread does no further call."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def play(self, chance: random.Random) -> None:
        """Give turns until all threads have ended: one of them several, or each one now and then."""
        stays, chosen = chance.choice([0.0, 0.5, 0.9, 0.97]), -1
        while True:
            with self._changed:
                assert self._changed.wait_for(lambda: self._running == 0, DEADLINE)
                if not self._waiting:
                    return
                ready = sorted(self._waiting)
                if chosen not in ready or chance.random() >= stays:
                    chosen = chance.choice(ready)
                self._waiting[chosen] = True
                self._running += 1
                self._changed.notify_all()


class Claimant:
    """A driver: claims, and commits until it has lost the location. `acknowledged` are what it took for complete."""

    def __init__(self, number: int, folder: Path, turns: Turns) -> None:
        self.acknowledged: list[tuple[Stamp, bytes]] = []
        self._number = number
        self._turns = turns
        self._storage = gated(folder, lambda *_: turns.wait(number))
        self._thread = threading.Thread(target=self._run, name=f"driver {number}")
        turns.begin()
        self._thread.start()

    def join(self) -> None:
        """It has ended."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._turns.wait(self._number)
            self._drive()
        except (CheckpointError, FileNotFoundError):  # its files go when another owner has committed
            return
        finally:
            self._turns.end()

    def _drive(self) -> None:
        storage = self._storage
        found = storage.claim(RETAINED)
        kept = {each.stamp.number: each.stamp for each in found.kept}
        first = max(kept, default=0) + 1
        for number in range(first, first + COMMITS):
            content = b"%d by %d" % (number, self._number)
            part = storage.write(storage.stamp(number), "t.0", [("n", content)])
            kept[number] = storage.commit(CheckpointMetadata(number, 0.0, {"t.0": part}))
            self.acknowledged.append((kept[number], content))
            storage.sweep(sorted(kept.values())[-RETAINED:])


@pytest.mark.parametrize("seed", some_of(range(400), 20))
def test_no_checkpoint_is_lost_or_mixed_whoever_claims_when(tmp_path: Path, seed: int) -> None:
    """Checkpoints that drivers took for complete count afterwards with their bytes, but for those too old."""
    chance = random.Random(seed)
    if chance.random() < 0.5:
        first = CheckpointStorage(str(tmp_path))
        first.claim()
        part = first.write(first.stamp(1), "t.0", [("n", b"1")])
        first.commit(CheckpointMetadata(1, 0.0, {"t.0": part}))
    turns = Turns()
    claimants = [Claimant(number, tmp_path, turns) for number in range(chance.choice([2, 3]))]
    turns.play(chance)
    for claimant in claimants:
        claimant.join()
    acknowledged = dict(pair for claimant in claimants for pair in claimant.acknowledged)
    numbers = [stamp.number for stamp in acknowledged]
    assert len(set(numbers)) == len(numbers), "two drivers took one checkpoint for complete"
    storage = CheckpointStorage(str(tmp_path))
    kept = [each for each in storage.history(read_through=True) if isinstance(each, UsableCheckpoint)]
    newest = {each.stamp: next(data for _, data in storage.read(each.metadata.parts["t.0"])) for each in kept}
    for stamp in sorted(acknowledged)[-RETAINED:]:
        assert newest.get(stamp) == acknowledged[stamp]
