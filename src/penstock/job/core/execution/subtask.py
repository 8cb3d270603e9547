# SPDX-License-Identifier: Apache-2.0
"""The JobMaster's knowledge of one subtask: its current attempt, its partitions, its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.graph.execution_state import ExecutionEvent, ExecutionLifecycle, ExecutionState
from penstock.graph.job_graph import JobVertex, shortened
from penstock.job.core.result import SubtaskStatus
from penstock.shuffle import AttemptId, ShuffleDescriptor


@dataclass(slots=True)
class Subtask:
    """One attempt of one subtask; `generation` counts the attempts before it."""

    vertex: JobVertex
    index: int
    lifecycle: ExecutionLifecycle
    generation: int = 0
    attempt: AttemptId | None = None
    environment: str = ""
    call: int | None = None
    """The question for a deployment that waits for its answer."""
    unregistered: int = 0
    """Partitions the ShuffleMaster has not answered for."""
    outputs: dict[int, ShuffleDescriptor] = field(default_factory=dict)
    consumable: set[int] = field(default_factory=set)
    """The edges whose partition can be read; the result counts here too."""
    deployed: bool = False
    halted: bool = False
    """It was stopped unasked, for a reason that is not known yet."""
    is_run_again: bool = False
    """Spark has begun another attempt of its task, which it does where it has ended this one."""
    empty: bool = False
    """Its Spark job is over and it never started: it has no rows."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    user_errors: int = 0
    """The number of times that user code has failed in it, over all attempts."""
    avoids: str = ""
    """The environment in which the last attempt failed for something that was no fault of its own."""
    known: Mapping[int, int] = field(default_factory=dict)
    """The rows that the last finished attempt wrote, per edge as a number: another number means other rows."""
    is_unwanted: bool = False
    """It was told that its rows are not wanted any more: it ends early, and its partitions are gone."""
    round: int = 0
    """The number of restarts that the job had seen when this attempt was deployed."""
    born: int = 0
    """The number it had seen when the last finished attempt was withdrawn: one deployed before has read that."""

    @classmethod
    def of(cls, job: str, vertex: JobVertex, index: int) -> Subtask:
        """A subtask that has not started."""
        return cls(vertex, index, ExecutionLifecycle(f"{job}/v{vertex.id}.{index}"))

    def again(self, job: str, round_: int) -> Subtask:
        """The next attempt, which has not started; this one is withdrawn by restart `round_`."""
        fresh = Subtask.of(job, self.vertex, self.index)
        fresh.generation, fresh.born = self.generation + 1, round_ if self.is_finished else self.born
        fresh.user_errors, fresh.known = self.user_errors, self.known
        fresh.avoids = self.avoids
        return fresh

    def begin(self, attempt: AttemptId, call: int, environment: str) -> None:
        """A task will run it and waits for its deployment."""
        if self.state is ExecutionState.CREATED:
            self.lifecycle.move(ExecutionEvent.SCHEDULE)
        self.lifecycle.move(ExecutionEvent.DEPLOY)
        self.attempt, self.call, self.environment = attempt, call, environment

    @property
    def place(self) -> tuple[int, int]:
        """Vertex and index."""
        return self.vertex.id, self.index

    @property
    def state(self) -> ExecutionState:
        """The execution state."""
        return self.lifecycle.state

    @property
    def is_ended(self) -> bool:
        """True if nothing is to be expected from this attempt any more."""
        return self.empty or self.state.is_terminal

    @property
    def is_finished(self) -> bool:
        """True if it ended well."""
        return self.empty or self.state is ExecutionState.FINISHED

    @property
    def is_live(self) -> bool:
        """True if a process works on it."""
        return self.attempt is not None and not self.is_ended

    @property
    def is_ready(self) -> bool:
        """True if it waits for its deployment and has all it needs."""
        return self.call is not None and self.unregistered == 0

    @property
    def status(self) -> SubtaskStatus:
        """Its state for people, and the place where it runs."""
        if self.empty:
            return SubtaskStatus("empty")
        if self.attempt is None:
            return SubtaskStatus("not started")
        state = self.state.name.lower() if self.deployed or self.is_ended else "waiting"
        return SubtaskStatus(state, self.attempt.attempt, self.environment)

    @property
    def title(self) -> str:
        """The name for messages."""
        place = f" on {self.environment}" if self.environment else ""
        return f"{shortened(self.vertex.name)}, subtask {self.index} of {self.vertex.parallelism}{place}"
