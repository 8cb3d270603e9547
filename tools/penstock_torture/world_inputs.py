# SPDX-License-Identifier: Apache-2.0
"""The events around a query of the failing world: files arrive, consumers take files, folders are copied."""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from penstock_torture.world_connectors import write_messages, write_numbers
from penstock_torture.world_shapes import QueryPlace, WorldShape

_FILES = 8


@dataclass
class Inputs:
    """The files of a query's sources: those of a log are there from the start, others come day by day."""

    shape: WorldShape
    place: QueryPlace
    chance: random.Random
    left: list[tuple[int, int, int]] = field(default_factory=list)
    """Files that have not come yet: their source, and the first and last of their numbers."""

    def __post_init__(self) -> None:
        for path, kind in enumerate(self.shape.sources):
            folder = self.place.inputs / str(path)
            folder.mkdir(parents=True)
            if kind == "delta":
                write_numbers(folder, 0, 0)
            if kind == "log":
                middle = self.shape.rows // 3
                _write(folder / "log-0", 0, middle)
                _write(folder / "log-1", middle, self.shape.rows)
            elif kind in ("files", "delta", "kafka"):
                cuts = sorted(self.chance.sample(range(1, self.shape.rows), _FILES - 1))
                self.left += [(path, *ends) for ends in zip([0, *cuts], [*cuts, self.shape.rows], strict=True)]
        self.chance.shuffle(self.left)

    def arrive(self, count: int) -> None:
        """So many files come, whole: some with a time of change that is wrong, some with a name of their own."""
        for _ in range(min(count, len(self.left))):
            path, begin, end = self.left.pop()
            folder = self.place.inputs / str(path)
            write = {"delta": write_numbers, "kafka": write_messages}.get(self.shape.sources[path])
            if write is not None:
                write(folder, begin, end)
                continue
            fresh = folder / f".{begin}"
            _write(fresh, begin, end)
            if self.chance.random() < 0.4:
                moment = time.time() + self.chance.choice((-3.0, -0.5, 0.5, 3.0))
                os.utime(fresh, (moment, moment))
            fresh.rename(folder / f"{self.chance.choice('abc')}{begin:06d}.txt")

    def arrive_all(self) -> None:
        """The rest."""
        self.arrive(len(self.left))


def consume(place: QueryPlace, taken: Path, chance: random.Random) -> int:
    """A consumer takes some of what it sees to a place of its own."""
    taken.mkdir(exist_ok=True)
    seen = sorted(place.out.rglob("part-*"))
    chosen = [path for path in seen if chance.random() < 0.7]
    for path in chosen:
        with suppress(FileNotFoundError):
            path.rename(taken / path.name)
    return len(chosen)


def copied(place: QueryPlace, number: int) -> QueryPlace:
    """The checkpoints in a place of their own, copied as a whole; the first place is left as it is."""
    target = place.checkpoints.with_name(f"checkpoints{number}")
    shutil.copytree(place.checkpoints, target)
    return QueryPlace(place.root, target, place.out)


def _write(path: Path, begin: int, end: int) -> None:
    path.write_text("".join(f"{number}\n" for number in range(begin, end)))
