# SPDX-License-Identifier: Apache-2.0
"""The one place where a streaming task of the `local` service waits: for whatever comes over its attachment.

What has come is counted as it is received, whoever receives it, so nothing that came between two waits is waited for.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping

from penstock.link.control import raise_for_error
from penstock.link.master import AcknowledgeCheckpoint, DataEnded, DeclineCheckpoint
from penstock.link.wire import Done, Plain, Request
from penstock.services.local.attachment import Attachment
from penstock.shuffle.actions import Action
from penstock.shuffle.errors import EnvironmentLostError, PenstockError
from penstock.shuffle.ids import AttemptId


class AttachmentLine:
    """A `TaskLine` of one attempt."""

    def __init__(self, attachment: Attachment, attempt: AttemptId) -> None:
        self._attachment = attachment
        self._attempt = attempt
        self._seen = 0
        self._refused: deque[PenstockError] = deque()

    def wait(self, seconds: float | None) -> None:
        """Return when anything has come for this task since the last call returned, or after so many seconds."""
        attachment = self._attachment
        if not self._has_news():
            attachment.look()
            if not self._has_news() and seconds != 0:
                with contextlib.suppress(TimeoutError):
                    attachment.wait(self._has_news, seconds)
        self._seen = attachment.arrivals.count
        attachment.check()
        if self._refused:
            raise self._refused.popleft()

    def take_actions(self) -> list[Action]:
        """What the JobMaster has said since the last call, in order; what it said to another attempt is dropped."""
        told, waiting = [], self._attachment.arrivals.actions
        while waiting:
            told.append(waiting.popleft())
        return [each.action for each in told if each.attempt == self._attempt]

    def acknowledge(self, checkpoint: int, handle: bytes, figures: Mapping[str, float]) -> None:
        """This task's part of a checkpoint is stored. Any thread."""
        self._tell(AcknowledgeCheckpoint(self._attempt, checkpoint, handle, dict(figures)))

    def decline(self, checkpoint: int, cause: str) -> None:
        """This task takes no part in a checkpoint. Any thread."""
        self._tell(DeclineCheckpoint(self._attempt, checkpoint, cause))

    def data_ended(self) -> None:
        """All of the task's data is processed."""
        self._tell(DataEnded(self._attempt))

    def report(self, metrics: Mapping[str, float]) -> None:
        """How far the task is; passed on twice a second at most."""
        self._attachment.report(metrics)

    def _has_news(self) -> bool:
        return self._attachment.arrivals.count != self._seen or bool(self._refused)

    def _tell(self, request: Request[Done]) -> None:
        with contextlib.suppress(EnvironmentLostError):  # raised where the task waits, not where a thread stores
            self._attachment.tell(request, self._answered)

    def _answered(self, answer: Plain) -> None:
        try:
            raise_for_error(answer)
        except PenstockError as error:
            self._refused.append(error)
