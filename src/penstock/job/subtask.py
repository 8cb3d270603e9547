# SPDX-License-Identifier: Apache-2.0
"""What the JobMaster knows of one subtask: its only attempt, its partitions, its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.graph.execution_state import ExecutionEvent, ExecutionLifecycle, ExecutionState
from penstock.graph.job_graph import JobVertex
from penstock.shuffle import AttemptId, ShuffleDescriptor


@dataclass(slots=True)
class Subtask:
    """One subtask. Without failover it has one attempt: the first that registers."""

    vertex: JobVertex
    index: int
    lifecycle: ExecutionLifecycle
    attempt: AttemptId | None = None
    environment: str = ""
    address: str = ""
    call: int | None = None
    """The registration that waits for its answer."""
    unregistered: int = 0
    """Partitions the ShuffleMaster has not answered for."""
    outputs: dict[int, ShuffleDescriptor] = field(default_factory=dict)
    consumable: set[int] = field(default_factory=set)
    """The edges whose partition can be read; the result counts here too."""
    deployed: bool = False
    empty: bool = False
    """Its Spark job is over and it never started: it has no rows."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, job: str, vertex: JobVertex, index: int) -> Subtask:
        """A subtask nobody has started."""
        return cls(vertex, index, ExecutionLifecycle(f"{job}/v{vertex.id}.{index}"))

    def stop(self) -> None:
        """It has stopped, asked or not."""
        self.lifecycle.handle(ExecutionEvent.CANCEL)
        if not self.state.is_terminal:
            self.lifecycle.handle(ExecutionEvent.CONFIRM_CANCEL)

    @property
    def state(self) -> ExecutionState:
        """The execution state."""
        return self.lifecycle.state

    @property
    def is_ended(self) -> bool:
        """Whether nothing is to be expected from it any more."""
        return self.empty or self.state.is_terminal

    @property
    def is_live(self) -> bool:
        """Whether a process works on it."""
        return self.attempt is not None and not self.is_ended

    @property
    def is_ready(self) -> bool:
        """Whether it waits for its deployment and has all it needs."""
        return self.call is not None and self.unregistered == 0

    @property
    def title(self) -> str:
        """How messages name it."""
        place = f" on {self.environment}" if self.environment else ""
        return f"{self.vertex.name} ({self.index + 1}/{self.vertex.parallelism}){place}"
