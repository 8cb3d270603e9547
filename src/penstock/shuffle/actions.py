# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's commands to a running task of a streaming query."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """Begin a checkpoint: a source's task, and one in front of which no task runs. `barrier` is what travels."""

    barrier: bytes


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """A checkpoint is complete: what was prepared for it, and for earlier ones, may be published."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class CheckpointGivenUp:
    """A checkpoint will not be completed."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class StopSource:
    """Take no more from the source: the query is told to stop. One that `goes_on` at once is not at a run's end."""

    goes_on: bool = False


Action = TriggerCheckpoint | CheckpointCompleted | CheckpointGivenUp | StopSource
