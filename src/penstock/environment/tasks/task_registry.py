# SPDX-License-Identifier: Apache-2.0
"""Which tasks are attached, and what came for one that is not there yet, or not any more.

A word of the JobMaster and the call of a task take different ways, so either may be first. Kept are: cancels and
actions of attempts that no task here runs, producers of gates that are not open, and gates that were closed before
they knew all their producers: those are told when they come that their reader has left, or their subpartition would
fill up and stop them. Each of these is bounded, the oldest go first, and all go with their job.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from penstock.environment.ports.inputs import GatePort
from penstock.environment.tasks.attached import AttachedTask
from penstock.link.commands import CancelTask, TaskAction
from penstock.shuffle import AttemptId, ShuffleDescriptor

CANCELS = 1024
ACTIONS = 1024
"""Actions, of all attempts together, that are kept for tasks that have not heard of their attempt."""
UPDATES = 65536
"""Producers, of all consumers together, that are kept for gates that are not open."""
GATES = 65536
"""Gates that were closed early."""


class TaskRegistry:
    """The tasks of one environment."""

    def __init__(self) -> None:
        self.tasks: set[AttachedTask] = set()
        self._cancels: OrderedDict[AttemptId, CancelTask] = OrderedDict()
        self._actions: deque[TaskAction] = deque(maxlen=ACTIONS)
        self._updates: OrderedDict[AttemptId, list[ShuffleDescriptor]] = OrderedDict()
        self._updates_kept = 0
        self._left: OrderedDict[GatePort, None] = OrderedDict()

    def cancel(self, command: CancelTask) -> None:
        """Tell a task to stop; one that has not heard of this attempt yet is told when it has."""
        found = [task for task in self.tasks if task.works_on(command.attempt)]
        for task in found:
            task.cancel(command)
        if not found:
            self._cancels[command.attempt] = command
            while len(self._cancels) > CANCELS:
                self._cancels.popitem(last=False)

    def act(self, action: TaskAction) -> None:
        """Pass on what the JobMaster has for a task; kept for one that has not heard of this attempt yet."""
        found = [task for task in self.tasks if task.works_on(action.attempt)]
        for task in found:
            task.act(action)
        if not found:
            self._actions.append(action)

    def catch_up(self, task: AttachedTask, attempt: AttemptId) -> None:
        """Tell a task that has just been given this attempt what came for it before."""
        command = self._cancels.pop(attempt, None)
        if command is not None:
            task.cancel(command)
        for action in [action for action in self._actions if action.attempt == attempt]:
            self._actions.remove(action)
            task.act(action)

    def update(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """The real producer of a gate's unknown channels; kept for a gate that is not open yet (False)."""
        # Every gate is asked: two inputs of one task may read the same dataset.
        updated = [task.update(consumer, descriptor) for task in list(self.tasks)]
        left = [gate.update(descriptor) for gate in list(self._left) if gate.attempt == consumer]
        for gate in [gate for gate in self._left if gate.attempt == consumer and gate.is_complete]:
            del self._left[gate]
        if not any(updated) and not any(left):
            self._keep(consumer, descriptor)
        return any(updated)

    def updates(self, consumer: AttemptId) -> tuple[ShuffleDescriptor, ...]:
        """The descriptors that came for a consumer before its gate was open."""
        return tuple(self._updates.get(consumer, ()))

    def leave(self, gate: GatePort) -> None:
        """A gate has closed; its producers that still come are told."""
        if not gate.is_complete:
            self._left[gate] = None
            while len(self._left) > GATES:
                self._left.popitem(last=False)

    def forget_job(self, job: str) -> None:
        """A job is over."""
        for gate in [gate for gate in self._left if gate.attempt.job == job]:
            del self._left[gate]
        for attempt in [attempt for attempt in self._cancels if attempt.job == job]:
            del self._cancels[attempt]
        for action in [action for action in self._actions if action.attempt.job == job]:
            self._actions.remove(action)
        for attempt in [attempt for attempt in self._updates if attempt.job == job]:
            self._updates_kept -= len(self._updates.pop(attempt))

    def _keep(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> None:
        self._updates.setdefault(consumer, []).append(descriptor)
        self._updates_kept += 1
        while self._updates_kept > UPDATES:
            _, oldest = self._updates.popitem(last=False)
            self._updates_kept -= len(oldest)
