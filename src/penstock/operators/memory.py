# SPDX-License-Identifier: Apache-2.0
"""The bytes of its input that a task may hold, and the folders for the rest.

Operators that collect rows (group functions, joins, sorts) ask `task_memory()`; the runner sets it for the length of
a subtask, so that it need not be handed through every operator. One limit for a task: of a chain, only one operator
collects at a time, except where a function keeps what it was given. The collected batches count; the copies that a
function makes, and one group while it is with the function, come on top.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from penstock.settings import Settings

_SPARKS_FOLDERS = "SPARK_LOCAL_DIRS"
"""Spark tells its Python workers its local directories by this."""


@dataclass(slots=True)
class TaskMemory:
    """The limit in bytes, the folder for spilled rows, and what was held at most and written there, in bytes.

    `others` are the folders for what finds no room there, in order.
    """

    limit: int
    directory: str
    peak_bytes: int = 0
    spilled_bytes: int = 0
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, subtask: int) -> TaskMemory:
        """The memory that the settings say; neighbouring subtasks take turns with the folders."""
        listed = settings.blocking.directories or os.environ.get(_SPARKS_FOLDERS, "")
        folders = [folder for name in listed.split(",") if (folder := name.strip()) and os.access(folder, os.W_OK)]
        if not folders:
            return cls(settings.task.group_memory, tempfile.gettempdir())
        first = subtask % len(folders)
        return cls(settings.task.group_memory, folders[first], others=(*folders[first + 1 :], *folders[:first]))

    def exceeded_by(self, held: int) -> bool:
        """Tell whether so many bytes are too many; remembers the most there were."""
        self.peak_bytes = max(self.peak_bytes, held)
        return held > self.limit


_CURRENT: ContextVar[TaskMemory | None] = ContextVar("penstock_task_memory", default=None)


def task_memory() -> TaskMemory:
    """The memory of the running task; outside a task, that of the defaults."""
    return _CURRENT.get() or TaskMemory.of(Settings(), 0)


@contextmanager
def limited_memory(memory: TaskMemory) -> Iterator[TaskMemory]:
    """Make this the memory of what runs in the block."""
    token = _CURRENT.set(memory)
    try:
        yield memory
    finally:
        _CURRENT.reset(token)
