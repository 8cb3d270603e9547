# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose pieces refer to older ones, of which some fail, and of which tasks hear late or never.

Each one that is complete removes what only older ones needed, so a reference to what has gone is found when it is
read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from penstock.checkpoint.metadata import Chunk as StoredChunk
from penstock.checkpoint.storage import pieces_of
from penstock.stream.chain import Chunk

Take = Callable[[int], list[Chunk]]
"""Takes one task's snapshot for the checkpoint of this number."""


class UncertainCheckpoints:
    """Those of one vertex's tasks; `tell` tells all of them that a checkpoint is complete."""

    def __init__(self, chance: random.Random, tell: Callable[[int], None]) -> None:
        self._chance = chance
        self._tell = tell
        self._number = 0
        self._files: dict[str, bytes] = {}
        """Those of checkpoints that may be complete, as far as they need them."""
        self._untold = 0
        """A checkpoint that is complete, and nobody has said so."""
        self.referred = 0
        """So many pieces lay in older checkpoints."""

    def take(self, tasks: Sequence[Take]) -> tuple[list[dict[str, bytes]], bool]:
        """The chunks of each task as a restore would read them, and whether the checkpoint is complete."""
        if self._untold and self._chance.random() < 0.5:
            self._tell(self._untold)
        self._number += 1
        needed: set[str] = set()
        own: set[str] = set()
        states = [self._stored(n, take, needed, own) for n, take in enumerate(tasks)]
        is_complete = self._chance.random() < 0.8
        if is_complete:  # what only older ones needed goes
            self._files = {file: data for file, data in self._files.items() if file in needed}
            self._untold = self._number
            if self._chance.random() < 0.7:
                self._tell(self._untold)
        else:
            self._files = {file: data for file, data in self._files.items() if file not in own}
        return states, is_complete

    def _stored(self, task: int, take: Take, needed: set[str], own: set[str]) -> dict[str, bytes]:
        state = {}
        is_placed = self._chance.random() < 0.9  # else the host's store writes it, and tells no places
        for name, make in take(self._number):
            made = make()
            if isinstance(made, StoredChunk):
                file, self.referred = made.file, self.referred + 1
            else:
                file = f"{self._number}/{task}/{name}"
                own.add(file)
                self._files[file] = b"".join(pieces_of(made))
                if is_placed and hasattr(make, "written"):
                    make.written(StoredChunk(name, 0, len(self._files[file]), 0, file))
            needed.add(file)
            state[name] = self._files[file]
        return state
