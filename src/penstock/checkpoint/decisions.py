# SPDX-License-Identifier: Apache-2.0
"""The decisions of the checkpoint coordinator, as values; its driver carries them out in order."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from penstock.checkpoint.barriers import CheckpointBarrier


@dataclass(frozen=True, slots=True)
class Trigger:
    """Tell these tasks, in front of which no task runs, to take their snapshots and send the barrier on."""

    barrier: CheckpointBarrier
    heads: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Write the checkpoint's metadata: the handle of each task's snapshot, and the tasks that have finished."""

    checkpoint: int
    handles: Mapping[Hashable, object]
    finished: frozenset[Hashable]


@dataclass(frozen=True, slots=True)
class Complete:
    """Tell all tasks that the checkpoint is complete: sinks commit, and tasks whose data had ended may go."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tell all tasks that nothing comes of the checkpoint."""

    checkpoint: int
    cause: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove what is stored of the checkpoint: it is not needed any more, or never became complete."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class DiscardHandle:
    """Remove one task's snapshot, which came after the end of its checkpoint."""

    checkpoint: int
    handle: object


@dataclass(frozen=True, slots=True)
class AnswerTrigger:
    """Answer the call: with the checkpoint's number, or with why there is none."""

    call: int
    checkpoint: int | None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class FailQuery:
    """More checkpoints failed in a row than the query tolerates."""

    cause: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `time_passed` at this time, unless another event gives a new time before."""

    time: float


Decision = Trigger | Store | Complete | GiveUp | Discard | DiscardHandle | AnswerTrigger | FailQuery | WakeAt
