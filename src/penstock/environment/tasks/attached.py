# SPDX-License-Identifier: Apache-2.0
"""One attached task: what it works on, the ports it has open, and what it gives back at its end."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Container, Mapping

from penstock.buffer import Holdings
from penstock.environment.ports.inputs import GatePort
from penstock.environment.ports.writer_port import WriterPort
from penstock.environment.task_frames import TaskFrames
from penstock.environment.tasks.task_life import TASK_TABLE, AttachedTaskEvent, TaskState
from penstock.errors import ProtocolError
from penstock.lifecycle.table import Lifecycle
from penstock.link.commands import CancelTask, TaskAction
from penstock.machine.shared_numbers import NumbersOfAnother
from penstock.machine.work_sign import WorkOfAnother
from penstock.shuffle import AttemptId, PartitionId, ShuffleDescriptor
from penstock.shuffle.metrics import DISK_GROUP

log = logging.getLogger("penstock.environment")


class AttachedTask:
    """A task of this host. A worker works on one attempt after the other; `identity` is its own name."""

    def __init__(self, to_task: TaskFrames, holdings: Holdings, pid: int = 0) -> None:
        self.to_task = to_task
        self.pid = pid
        """Of its process; 0 where the system does not say."""
        self.holdings = holdings
        self.attempt: AttemptId | None = None
        self.metrics: dict[str, float] = {}
        self.on_disk_work: Callable[[int, dict[str, float]], None] = lambda _, __: None
        """Told its process and what that has done for disks since it began."""
        self.writers: dict[int, WriterPort] = {}
        """Those of which frames tell, by port."""
        self._lessors: dict[int, WriterPort] = {}
        """Writers that have ended before all that they had leased came back."""
        self.gates: dict[int, GatePort] = {}
        self._written: dict[PartitionId, WriterPort] = {}
        self._counts: NumbersOfAnother | None = None
        self._work: WorkOfAnother | None = None
        self.identity: AttemptId | None = None
        self._owners: set[AttemptId] = set()
        self._life = Lifecycle(f"task of process {pid}", TASK_TABLE, TaskState.ATTACHED)

    @property
    def state(self) -> TaskState:
        """The state that it is in."""
        return self._life.state

    @property
    def is_gone(self) -> bool:
        """True if its connection has ended."""
        return self.state is TaskState.GONE

    def begin(self, identity: AttemptId) -> None:
        """It asks for work, by its own name; a worker is then given an attempt."""
        self._life.move(AttachedTaskEvent.ASK)
        self._forget_counts()
        self.identity = self.attempt = identity
        self.metrics = {}

    def share_counts(self, descriptor: int) -> None:
        """Its counts of rows can be read here; raises OSError where they can't."""
        self._forget_counts()
        self._counts = NumbersOfAnother(self.pid, descriptor)

    def share_work(self, descriptor: int) -> None:
        """What it works on can be read here; raises OSError where it can't."""
        self._forget_work()
        self._work = WorkOfAnother(self.pid, descriptor)

    def work(self) -> str:
        """What its process works on, or worked on when it died; empty where it has not said."""
        return "" if self._work is None else self._work.read()

    def counts(self) -> dict[str, float]:
        """Its counts of rows, as they are or were at its death; none if it counts none."""
        return {} if self._counts is None else {name: float(value) for name, value in self._counts.read().items()}

    def _forget_counts(self) -> None:
        counts, self._counts = self._counts, None
        if counts is not None:
            counts.close()

    def _forget_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.close()

    def reported(self, told: Mapping[str, float]) -> None:
        """It tells how far it is, and what its process has done for disks; its last word is of disks alone."""
        disks = {name: value for name, value in told.items() if name.startswith(DISK_GROUP)}
        if len(disks) < len(told):
            self.metrics = {name: value for name, value in told.items() if name not in disks}
        self.on_disk_work(self.pid, {name.removeprefix(DISK_GROUP): value for name, value in disks.items()})

    def deployed(self, attempt: AttemptId | None) -> None:
        """It has got an attempt to work on, or may end."""
        self._life.move(AttachedTaskEvent.DISMISS if attempt is None else AttachedTaskEvent.DEPLOY)
        if attempt is not None and not self.is_gone:
            self.attempt = attempt

    def finished(self) -> None:
        """Its attempt has ended: what the JobMaster still says of that one is not for what it does next."""
        self._life.move(AttachedTaskEvent.REPORT if self.attempt == self.identity else AttachedTaskEvent.FINISH)
        self.attempt = self.identity
        self._owners.clear()

    def owns(self, attempt: AttemptId) -> None:
        """It opens a port in the name of this attempt."""
        self._owners.add(attempt)

    def works_on(self, attempt: AttemptId) -> bool:
        """Tell whether it works on this attempt."""
        return attempt == self.attempt or attempt in self._owners

    def cancel(self, command: CancelTask) -> None:
        """Tell it to stop."""
        self._life.move(AttachedTaskEvent.CANCEL)
        self.to_task.cancel(command.cause, is_unwanted=command.is_unwanted)

    def act(self, action: TaskAction) -> None:
        """Pass on what the JobMaster has for it."""
        self.to_task.action(action)

    def end_session(self, cause: str) -> None:
        """Serve it no more; what was said to it is sent, and `end` is called for that."""
        self.to_task.take_turn()
        self.to_task.lost(cause)

    def update(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """Tell its gates of a producer; whether one has waited for it."""
        gates = [gate for gate in self.gates.values() if gate.attempt == consumer]
        return sum(gate.update(descriptor) for gate in gates) > 0

    def opened(self, partition: PartitionId, writer: WriterPort) -> None:
        """It writes this partition."""
        self._written[partition] = writer
        if writer.number:
            self.writers[writer.number] = writer

    def pause_sources(self, jobs: Container[str]) -> None:
        """Its writers for these jobs get no more segments, if it is a source; those for others do."""
        is_source = not self.gates
        for partition, writer in self._written.items():
            writer.pause(is_paused=is_source and partition.job in jobs)

    def take_writer(self, partition: PartitionId) -> WriterPort:
        """The writer of a partition, which ends; ProtocolError where there is none."""
        writer = self._written.pop(partition, None)
        if writer is None:
            raise ProtocolError(f"{self.attempt} does not write partition {partition}")
        self.writers.pop(writer.number, None)
        if writer.leased:
            self._lessors[writer.number] = writer
        return writer

    def returned(self, port: int, segments: tuple[int, ...]) -> None:
        """It gives back what it had leased for a writer's port; what comes for a gate that was closed is dropped."""
        writer = self.writers.get(port) or self._lessors.get(port)
        if writer is not None:
            writer.recycle(segments)
            if not writer.leased:
                self._lessors.pop(port, None)

    def end(self, cause: str) -> AttemptId | None:
        """It is gone: close its gates, fail its writers, give back what it held. The attempt that is lost with it."""
        lost = None if self.state is TaskState.REPORTED else self.attempt
        self._life.move(AttachedTaskEvent.GO)
        self._forget_counts()
        self._forget_work()
        for gate in list(self.gates.values()):
            _end(gate.close)
        for writer in list(self._written.values()):
            _end(functools.partial(writer.fail, cause))
        self.holdings.drop_all()
        return lost


def _end(end: Callable[[], None]) -> None:
    """End one port; a fault in it costs no other its end."""
    try:
        end()
    except Exception:
        log.exception("a port could not be ended cleanly")
