# SPDX-License-Identifier: Apache-2.0
"""The failures of tasks, by what the JobMaster does about them."""

from __future__ import annotations

from enum import StrEnum


class FailureKind(StrEnum):
    """The meaning of a failure for the tasks that run again.

    An error says it itself; the kind travels with the task's report.
    """

    CAUSE = "cause"
    """The task's own: its code or its data, or what was not foreseen. Tried again as often as the settings allow
    errors of users' code."""
    CONSEQUENCE = "consequence"
    """Something else went wrong first, and another task will tell of it."""
    HOST = "host"
    """The host lacks something or has damaged it, or what a query reads and writes has failed. No fault of the user's
    code: tried again like any loss, on another host if there is one."""
    STORAGE = "storage"
    """One directory of the host takes no more. The environment looks if there is another one."""
    NO_STORAGE = "no_storage"
    """No directory of the host takes any more: tried again while there is another host."""
    UNRESTORABLE = "unrestorable"
    """The task's part of the checkpoint is damaged: an older one is taken."""
    INPUT_CUT_OFF = "input_cut_off"
    """The task's DataFrame ended in mid-data: Spark knows why, and runs the task again or gives its own job up."""

    @property
    def is_of_host(self) -> bool:
        """True if the task may go well on another host, or later."""
        return self in (FailureKind.HOST, FailureKind.STORAGE, FailureKind.NO_STORAGE)
