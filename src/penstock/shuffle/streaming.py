# SPDX-License-Identifier: Apache-2.0
"""The mailbox of a streaming task, and the host's store for its parts of checkpoints. The engine makes both.

A streaming task is a loop around `Mailbox.wait`. All that may let it go on ends that wait: input of any gate, room
in any output, an action of the JobMaster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.shuffle.actions import Action


@dataclass(frozen=True, slots=True)
class HandedPart:
    """A task's part of a checkpoint that another process of its host is to store.

    `location` is where the query's checkpoints lie, `owner` is its owner. The bytes are in memory that this
    process has open (descriptor, device, inode); `handle` says which chunks they are.
    """

    location: str
    owner: str
    checkpoint: int
    memory: tuple[int, int, int]
    handle: bytes
    figures: Mapping[str, float]


class HostStore(Protocol):
    """Stores parts of checkpoints for the tasks of a host, several of them in one file. Any thread."""

    def share_files(self, location: str, owner: str) -> None:
        """The task will say of each checkpoint of the query what becomes of its part: of all, until it leaves."""

    def hand_over(self, part: HandedPart, done: Callable[[str], None]) -> None:
        """Have a part stored and acknowledged. `done` gets why that could not be, or nothing; then the memory may go.

        It is called where the task waits. It is not called where the mailbox is broken, and where the
        acknowledgement is refused: that is raised as for `Mailbox.acknowledge`.
        """

    def leave_files(self) -> None:
        """The task takes part in no further checkpoint."""


class Mailbox(Protocol):
    """The one place where a streaming task waits, and the way to the JobMaster. The engine makes it.

    Any thread may speak to the JobMaster; that raises nothing, and the answer is not waited for. If the answer is an
    error, or the mailbox is broken, the next `wait` raises it.
    """

    def wait(self, seconds: float | None) -> None:
        """Return when anything has come for this task since the last call returned, or after so many seconds.

        That is input of any gate, room in any output, or an action. None: no limit; 0: only look. Raises
        TaskCancelledError, EnvironmentLostError, and what a call without an answer was answered with.
        """

    def take_actions(self) -> list[Action]:
        """The words of the JobMaster since the last call, in order; never waits."""

    def acknowledge(self, checkpoint: int, handle: bytes, figures: Mapping[str, float]) -> None:
        """This task's part of a checkpoint is stored: how it is found again, and what it took."""

    def decline(self, checkpoint: int, cause: str) -> None:
        """This task takes no part in a checkpoint."""

    def data_ended(self) -> None:
        """All of the task's data is processed."""

    def report(self, metrics: Mapping[str, float]) -> None:
        """Report the progress of the task."""
