# SPDX-License-Identifier: Apache-2.0
"""Which parts of checkpoints go into which files of a host, and when a file is complete: a core without I/O.

The tasks of a query that run here hand their parts of a checkpoint over. Parts are appended to one file as they come,
and a further one is begun where that is full. A file is complete when each task here has said what becomes of its
part: it was handed over, the task has stored it by itself, declined, or is gone. A word that the checkpoint is given
up ends its files too, and so does the next checkpoint; a part that comes after that has a file for itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

FULL_BYTES: Final = 64 << 20
"""A file with so many bytes takes no further part: then several files are written at once."""

Query = tuple[str, str]
"""A query's location of checkpoints, and its owner."""
Task = Hashable


@dataclass(frozen=True, slots=True)
class FileId:
    """One file of a host; no two have one number."""

    query: Query
    checkpoint: int
    number: int


@dataclass(frozen=True, slots=True)
class Append:
    """A task's part goes into this file, after those that are there."""

    file: FileId


@dataclass(frozen=True, slots=True)
class Seal:
    """Nothing more comes into this file."""

    file: FileId


Decision = Append | Seal


@dataclass(slots=True)
class _Round:
    """A query's newest checkpoint. `said` are the tasks that have said what becomes of their parts."""

    checkpoint: int
    said: set[Task] = field(default_factory=set)
    is_over: bool = False
    open: FileId | None = None
    open_bytes: int = 0


class HostFiles:
    """The files of all queries of one host."""

    def __init__(self, full_bytes: int = FULL_BYTES) -> None:
        self._full_bytes = full_bytes
        self._tasks: dict[Task, Query] = {}
        self._rounds: dict[Query, _Round] = {}
        self._numbers = itertools.count(1)

    def joined(self, task: Task, query: Query) -> None:
        """A task of the query runs here: it will say of each checkpoint what becomes of its part."""
        self._tasks[task] = query

    def left(self, task: Task) -> list[Decision]:
        """It runs here no more."""
        query = self._tasks.pop(task, None)
        if query is None:
            return []
        decisions = self._looked_at(query)
        if query not in self._tasks.values():
            self._rounds.pop(query, None)
        return decisions

    def handed_over(self, task: Task, query: Query, checkpoint: int, size: int) -> list[Decision]:
        """A task's part of a checkpoint has come, with so many bytes."""
        decisions = self._reached(query, checkpoint) if task in self._tasks else []
        current = self._rounds.get(query)
        if task not in self._tasks or current is None or checkpoint < current.checkpoint or current.is_over:
            alone = FileId(query, checkpoint, next(self._numbers))
            return [*decisions, Append(alone), Seal(alone)]
        if current.open is not None and current.open_bytes + size > self._full_bytes:
            decisions.append(Seal(current.open))
            current.open = None
        if current.open is None:
            current.open, current.open_bytes = FileId(query, checkpoint, next(self._numbers)), 0
        current.open_bytes += size
        current.said.add(task)
        return [*decisions, Append(current.open), *self._looked_at(query)]

    def settled(self, task: Task, checkpoint: int) -> list[Decision]:
        """A task has stored its part by itself, or declined."""
        decisions, current = self._spoke_of(task, checkpoint)
        if current is not None:
            current.said.add(task)
            decisions += self._looked_at(self._tasks[task])
        return decisions

    def given_up(self, task: Task, checkpoint: int) -> list[Decision]:
        """A task is told that nothing comes of a checkpoint: the others are not waited for."""
        decisions, current = self._spoke_of(task, checkpoint)
        if current is not None:
            decisions += _closed(current)
            current.is_over = True
        return decisions

    def waited_long(self, file: FileId) -> list[Decision]:
        """No part has come into it for a long time."""
        current = self._rounds.get(file.query)
        return _closed(current) if current is not None and current.open == file else []

    def check(self) -> None:
        """The invariants of this core; raises AssertionError."""
        for query, current in self._rounds.items():
            tasks = {task for task, of in self._tasks.items() if of == query}
            if not tasks:
                raise AssertionError(f"{query} has files and no task")
            if current.open is not None and (current.is_over or tasks <= current.said):
                raise AssertionError(f"{current.open} waits for nobody")

    def _spoke_of(self, task: Task, checkpoint: int) -> tuple[list[Decision], _Round | None]:
        """The decisions that follow from it alone, and the round; None if that is over, or the task left."""
        query = self._tasks.get(task)
        if query is None:
            return [], None
        decisions, current = self._reached(query, checkpoint), self._rounds[query]
        return decisions, current if current.checkpoint == checkpoint else None

    def _reached(self, query: Query, checkpoint: int) -> list[Decision]:
        """The checkpoint that a task speaks of may be a new one: the files of the one before are complete."""
        current = self._rounds.get(query)
        if current is not None and checkpoint <= current.checkpoint:
            return []
        self._rounds[query] = _Round(checkpoint)
        return _closed(current) if current is not None else []

    def _looked_at(self, query: Query) -> list[Decision]:
        current = self._rounds.get(query)
        if current is None or any(task not in current.said for task, of in self._tasks.items() if of == query):
            return []
        return _closed(current)


def _closed(current: _Round) -> list[Decision]:
    file, current.open = current.open, None
    return [] if file is None else [Seal(file)]
