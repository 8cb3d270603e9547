# SPDX-License-Identifier: Apache-2.0
"""The task that took longest for the last complete checkpoint of a query, and the phase that it took it in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.graph.streaming import vertex_of_part
from penstock.job.core.result import CheckpointCounts

PHASES = {
    "startDelay": "start_seconds",
    "alignment": "align_seconds",
    "sync": "freeze_seconds",
    "async": "store_seconds",
}
"""The phases of a task's part, and the figure that tells how long each took."""
_WORDS = {
    "startDelay": "of start delay",
    "alignment": "of alignment, until its last barrier came",
    "sync": "to take its snapshot (sync)",
    "async": "to store its snapshot at the checkpoint location (async)",
}


@dataclass(frozen=True, slots=True)
class SlowPart:
    """The slowest task of a checkpoint."""

    stage: str
    subtask: int
    phase: str
    seconds: float

    @property
    def text(self) -> str:
        """One sentence."""
        return f"{self.stage}: subtask {self.subtask} took {self.seconds:.1f} s {_WORDS[self.phase]}"


def slowest_part(counts: CheckpointCounts, stages: Mapping[str, str]) -> SlowPart | None:
    """That of the last complete checkpoint, if there is one; `stages` are names by uid."""
    complete = [report for report in counts.reports if not report.cause and report.tasks]
    if not complete:
        return None
    spans = [
        (figures.get(key, 0.0), phase, task)
        for task, figures in complete[-1].tasks.items()
        for phase, key in PHASES.items()
    ]
    seconds, phase, task = max(spans)
    uid, subtask = vertex_of_part(task)
    return SlowPart(stages.get(uid, uid), subtask, phase, seconds)
