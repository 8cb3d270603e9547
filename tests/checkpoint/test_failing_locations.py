# SPDX-License-Identifier: Apache-2.0
"""A location whose disk fails, or whose driver dies, at each single call in turn: nothing lost, nothing doubled."""

from __future__ import annotations

import errno
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from effort import THOROUGH
from failing_files import gated
from penstock.checkpoint.errors import CheckpointError, FencedError, UncertainCheckpointError
from penstock.checkpoint.found import Unusable
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.stamps import Stamp
from penstock.checkpoint.storage import CheckpointStorage
from underway import listed

RETAINED = 2
STARTS = 3
COMMITS = 3


class KilledError(BaseException):
    """The driver dies here."""


class World:
    """Counts the calls of a life, and lets one of them fail, or all from there until the next start."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind = kind
        self.at = at
        self.calls: Counter[str] = Counter()
        self.is_full = False

    def gate(self, name: str, path: str) -> None:
        """One call."""
        self.calls[name] += 1
        is_due = self.calls.total() == self.at
        is_write = name in ("create_dir", "open_output_stream", "write", "close")
        match self.kind:
            case "an error once" if is_due:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            case "killed" if is_due:
                raise KilledError
            case "full" if self.is_full or is_due:
                self.is_full = True
                if is_write:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            case "away" if self.is_full or is_due:
                self.is_full = True
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)


class Life:
    """A query's drivers, one after the other, and what a reader of its sink has seen.

    `published` is the newest checkpoint that a driver took for complete. If a driver dies in a commit, nobody knows,
    so that checkpoint may count: `in_doubt`.
    """

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        self.world = world
        self.published = 0
        self.in_doubt = 0

    def run(self) -> None:
        """Several drivers; a start that is refused is tried again when the disk is well."""
        for _ in range(STARTS):
            with suppress(KilledError, OSError, CheckpointError):
                self.drive(gated(self.folder, self.world.gate))
            self.world.is_full = False
            self.check()

    def drive(self, storage: CheckpointStorage) -> None:
        """One driver: claims, commits, removes; it ends where a checkpoint is in doubt."""
        found = storage.claim(RETAINED)
        base = 0 if found.stamp is None else found.stamp.number
        assert base in {self.published, self.in_doubt or self.published}, f"{base}, not {self.published}"
        self.published, self.in_doubt = base, 0  # what it goes on from is published as it begins
        kept = {each.stamp.number: each.stamp for each in found.kept}
        for number in range(base + 1, base + 1 + COMMITS):
            self.in_doubt = number
            try:
                part = storage.write(storage.stamp(number), "t.0", [("n", b"%d" % number)])
                kept[number] = storage.commit(CheckpointMetadata(number, 0.0, {"t.0": part}))
            except (FencedError, UncertainCheckpointError):
                raise
            except (OSError, CheckpointError):
                self.in_doubt = 0
                _clear(storage, storage.stamp(number))
                continue
            self.published, self.in_doubt = number, 0
            while len(kept) > RETAINED:
                _clear(storage, kept.pop(min(kept)))
            with suppress(OSError, CheckpointError):
                storage.sweep(kept.values())

    def check(self) -> None:
        """On a disk that is well everything that a next driver would need is there."""
        history = CheckpointStorage(str(self.folder)).history(read_through=True)
        assert not [each for each in history if isinstance(each, Unusable)]
        newest = history[-1].stamp.number if history else 0
        assert newest in {self.published, self.in_doubt or self.published}, f"{newest}, not {self.published}"


def _clear(storage: CheckpointStorage, stamp: Stamp) -> None:
    """A checkpoint goes, if the disk lets it."""
    with suppress(OSError, CheckpointError):
        storage.discard(stamp)


KINDS = ["an error once", "killed", "full", "away"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_call_fails_once(tmp_path: Path, kind: str) -> None:
    """Three drivers of a query, over and over, with one more call that fails: the last one has what it must have.

    In short runs each fifth call does, of each kind of failure another fifth.
    """
    calls = 1
    step = 1 if THOROUGH else 5
    at = KINDS.index(kind) % step + 1 - step
    while at <= calls:
        at += step
        world = World(kind, at)
        life = Life(tmp_path / str(at), world)
        life.run()
        calls = world.calls.total()
    assert at > 100
    assert len(listed(tmp_path / str(at) / "owners")) <= 2 * RETAINED, "owners that nobody needs have gone"
