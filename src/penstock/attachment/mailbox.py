# SPDX-License-Identifier: Apache-2.0
"""The one place where a streaming task waits: for whatever comes over its attachment.

Arrivals are counted as they are received, by whichever thread, so nothing that came between two waits is waited for.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from penstock.attachment.attachment import Attachment
from penstock.errors import EnvironmentLostError, PenstockError
from penstock.link.calls import HandedOver, HandOverPart, LeaveFiles, ShareCounts, ShareFiles
from penstock.link.control import raise_for_error
from penstock.link.master import AcknowledgeCheckpoint, DataEnded, DeclineCheckpoint
from penstock.link.wire import Plain, from_wire
from penstock.shuffle.actions import Action
from penstock.shuffle.ids import AttemptId
from penstock.shuffle.requests import Request
from penstock.shuffle.streaming import HandedPart


class AttachmentMailbox:
    """A `Mailbox` of one attempt, and its `HostStore`."""

    def __init__(self, attachment: Attachment, attempt: AttemptId) -> None:
        self._attachment = attachment
        self._attempt = attempt
        self._seen = 0
        self._refused: deque[PenstockError] = deque()

    def wait(self, seconds: float | None) -> None:
        """Return when anything has come for this task since the last call returned, or after so many seconds."""
        self._attachment.wait(self._seen, seconds)
        self._seen = self._attachment.arrivals
        if self._refused:
            raise self._refused.popleft()

    def take_actions(self) -> list[Action]:
        """The words of the JobMaster since the last call, in order; those to another attempt are dropped."""
        told, waiting = [], self._attachment.actions
        while waiting:
            told.append(waiting.popleft())
        return [each.action for each in told if each.attempt == self._attempt]

    def acknowledge(self, checkpoint: int, handle: bytes, figures: Mapping[str, float]) -> None:
        """This task's part of a checkpoint is stored. Any thread."""
        self._tell(AcknowledgeCheckpoint(self._attempt, checkpoint, handle, dict(figures)))

    def decline(self, checkpoint: int, cause: str) -> None:
        """This task takes no part in a checkpoint. Any thread."""
        self._tell(DeclineCheckpoint(self._attempt, checkpoint, cause))

    def share_files(self, location: str, owner: str) -> None:
        """The task will say of each checkpoint of the query what becomes of its part."""
        self._tell(ShareFiles(self._attempt, location, owner))

    def hand_over(self, part: HandedPart, done: Callable[[str], None]) -> None:
        """Have the environment store a part with those of other tasks, and acknowledge it. Any thread."""
        request = HandOverPart(
            self._attempt, part.location, part.owner, part.checkpoint, part.memory, part.handle, dict(part.figures)
        )
        self._tell(request, lambda answer: done(from_wire(HandedOver, answer).cause))

    def share_counts(self, descriptor: int) -> None:
        """The task counts its rows in memory that it has open under this descriptor."""
        self._tell(ShareCounts(self._attempt, descriptor))

    def leave_files(self) -> None:
        """The task takes part in no further checkpoint."""
        self._tell(LeaveFiles(self._attempt))

    def data_ended(self) -> None:
        """All of the task's data is processed."""
        self._tell(DataEnded(self._attempt))

    def report(self, metrics: Mapping[str, float]) -> None:
        """Report the progress of the task; passed on twice a second at most."""
        self._attachment.report(metrics)

    def _tell(self, request: Request[Any], done: Callable[[Plain], None] | None = None) -> None:
        with contextlib.suppress(EnvironmentLostError):  # raised where the task waits, not where a thread stores
            self._attachment.tell(request, functools.partial(self._answered, done))

    def _answered(self, done: Callable[[Plain], None] | None, answer: Plain) -> None:
        try:
            raise_for_error(answer)
            if done is not None:
                done(answer)
        except PenstockError as error:
            self._refused.append(error)
            self._attachment.arrived()
