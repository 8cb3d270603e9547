# SPDX-License-Identifier: Apache-2.0
"""The names of files of logs: they say when a file is not written any more, without looking into it.

A task begins a file after a checkpoint, and ends it at the next one at the latest. So when a later checkpoint is
complete, each file that was begun before it has its end, and its rows are in front of that checkpoint: what this does
not need of them no later one does. Checkpoints have growing numbers over all attempts of an owner, and each owner has
a folder.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.stamps import Owner

_FOLDER = "logs-"


@dataclass(frozen=True, slots=True)
class LogName:
    """A file: whose it is (`folder` is its owner's), the checkpoint after which it was begun, and its number."""

    folder: str
    task: str
    attempt: int
    behind: int
    number: int

    def __str__(self) -> str:
        return f"{self.task}.{self.attempt}.{self.behind}.{self.number}"

    @classmethod
    def of(cls, folder: str, name: str) -> LogName | None:
        """The name that these are, or None."""
        task, *numbers = name.rsplit(".", 3)
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            return None
        return cls(folder, task, *map(int, numbers))


def log_folder(owner: str) -> str:
    """The folder of an owner's logs, below the location."""
    return f"{_FOLDER}{owner}"


def owner_of(folder: str) -> Owner | None:
    """The owner whose logs lie in a folder; None for another folder."""
    name = folder.removeprefix(_FOLDER)
    return Owner.of(name) if name != folder else None


def is_before(name: str, checkpoint: int) -> bool:
    """Tell whether a file of a log was begun before a checkpoint; false for any other file."""
    found = LogName.of("", name)
    return found is not None and found.behind < checkpoint
