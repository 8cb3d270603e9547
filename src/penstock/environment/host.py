# SPDX-License-Identifier: Apache-2.0
"""What one environment process holds: memory, pools, partitions, sessions of tasks, and the end of each turn.

Everything here runs on the event loop's thread. Sessions, gates and writers mark themselves dirty while events
are handled; at the end of the turn all gates are pumped and all sessions send, so a peer gets one message per
turn however much happened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.buffer import NetworkBufferPool, SegmentMemory, SegmentReferences
from penstock.environment.blocking import BlockingPartition
from penstock.environment.hybrid import HybridResult
from penstock.environment.results import ResultFiles
from penstock.environment.spilling import HybridPartitions
from penstock.network.rendezvous import Rendezvous
from penstock.partition.registry import PartitionRegistry
from penstock.partition.view import DataListener, SubpartitionView
from penstock.shuffle import AttemptId, PartitionId, Settings, ShuffleDescriptor

if TYPE_CHECKING:
    from penstock.environment.inputs import GatePort
    from penstock.environment.remote import RemoteExchange
    from penstock.environment.session import TaskSession

log = logging.getLogger("penstock.environment")

_EARLY_CANCELS = 1024
_EARLY_UPDATES = 65536
"""Updates kept for gates that are not open yet; they are dropped when newer ones need the place."""

NOT_PRODUCED_SECONDS = 10.0
"""How long a reader waits for a partition that nobody has registered."""


class Control(Protocol):
    """The JobMaster, as the environment sees it."""

    async def call(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        """Ask the JobMaster; raises what it raised, or ControlError."""

    def tell(self, method: str, message: dict[str, Any]) -> None:
        """Tell the JobMaster something, in order; failures are logged."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The configuration that the starting task passes on standard input."""

    application: str
    secret: bytes
    master: str
    settings: Settings
    place: Rendezvous


class Host:
    """The state of one environment process."""

    def __init__(self, config: HostConfig) -> None:
        network = config.settings.network
        count = network.memory // network.segment_size
        self.config = config
        self.settings = config.settings
        self.environment = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(3)}"
        self.address = ""
        self.memory = SegmentMemory.create(count, network.segment_size, "penstock")
        self.pool = NetworkBufferPool(count)
        self.references = SegmentReferences(count, network.segment_size)
        self.registry = PartitionRegistry(self.environment, timeout=NOT_PRODUCED_SECONDS)
        self.results = ResultFiles(self)
        self.hybrid = HybridPartitions(self)
        self.sessions: set[TaskSession] = set()
        self.control: Control | None = None
        self.remote: RemoteExchange | None = None
        self.stopping = asyncio.Event()
        self._dirty_sessions: set[TaskSession] = set()
        self._dirty_gates: dict[GatePort, None] = {}
        self._turn_due = False
        self._loop = asyncio.get_running_loop()
        self._background: set[asyncio.Task[None]] = set()
        self._left_gates: dict[AttemptId, list[GatePort]] = {}
        self._early_cancels: deque[tuple[AttemptId, str]] = deque(maxlen=_EARLY_CANCELS)
        self._early_updates: deque[tuple[AttemptId, ShuffleDescriptor]] = deque(maxlen=_EARLY_UPDATES)

    def now(self) -> float:
        """Seconds on the loop's clock."""
        return self._loop.time()

    def touch_session(self, session: TaskSession) -> None:
        """The session has something to send."""
        self._dirty_sessions.add(session)
        self.schedule_turn()

    def touch_gate(self, gate: GatePort) -> None:
        """The gate may have something to deliver."""
        self._dirty_gates[gate] = None
        self.schedule_turn()

    def in_background(self, work: Callable[[], Any]) -> None:
        """Run a coroutine function on its own; its failure is logged, never lost."""
        task = self._loop.create_task(self._guard(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _guard(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("background work failed")

    def consumable(self, partition: PartitionId) -> None:
        """The partition can be consumed: at its first buffer, or complete."""
        if self.control is not None:
            message = {"partition": partition.to_wire(), "environment": self.environment}
            self.control.tell("PartitionConsumable", message)

    def update_partition_info(self, consumer: AttemptId, descriptor: ShuffleDescriptor) -> bool:
        """The real producer of a gate's unknown channels; kept for a gate that is not open yet (False)."""
        gates = [g for session in self.sessions for g in session.gates.values() if g.attempt == consumer]
        # Every gate is asked: two inputs of one task may read the same dataset.
        updated = sum(gate.update(descriptor) for gate in gates) > 0
        left = sum(gate.update(descriptor) for gate in self._left_gates.get(consumer, ())) > 0
        if not (updated or left):
            self._early_updates.append((consumer, descriptor))
        return updated

    def remember(self, gate: GatePort) -> None:
        """A gate has closed before all its producers came: they are told when they come."""
        self._left_gates.setdefault(gate.attempt, []).append(gate)

    def release_job(self, job: str) -> None:
        """A job is over: release all it has here."""
        self.registry.release_job(job)
        for attempt in [attempt for attempt in self._left_gates if attempt.job == job]:
            del self._left_gates[attempt]

    def take_updates(self, consumer: AttemptId) -> list[ShuffleDescriptor]:
        """What came for a consumer before its gate was open."""
        return [descriptor for attempt, descriptor in self._early_updates if attempt == consumer]

    def local_view(self, partition: PartitionId, first: int, count: int, listener: DataListener) -> SubpartitionView:
        """A view for a reader on this host; raises the answer that fits where there is none."""
        found = self.registry.get(partition)
        if isinstance(found, BlockingPartition | HybridResult):
            return found.create_local_view(first, count, listener)
        return self.registry.request(partition, first, listener, count)

    def cancel_task(self, attempt: AttemptId, cause: str) -> None:
        """Tell a task to stop; one that has not heard of this attempt yet is told when it has."""
        found = [s for s in self.sessions if attempt == s.attempt or attempt in s.owners]
        for session in found:
            session.cancel(cause)
        if not found:
            self._early_cancels.append((attempt, cause))

    def take_cancel(self, attempt: AttemptId) -> str | None:
        """Why an attempt that has just been deployed here is to stop, where it is."""
        return next((cause for known, cause in self._early_cancels if known == attempt), None)

    def task_metrics(self) -> list[tuple[Any, dict[str, float]]]:
        """What the tasks have reported, for the heartbeat."""
        return [(s.attempt.to_wire(), s.metrics) for s in self.sessions if s.attempt is not None]

    def statistics(self) -> dict[str, float]:
        """Figures for the heartbeat."""
        pool = self.pool.statistics()
        figures: dict[str, float] = {
            "segments_total": pool.total,
            "segments_in_use": pool.in_use,
            "segments_guaranteed": pool.guaranteed,
            "partitions": len(self.registry),
            "read_bytes_held": self.results.reads.bytes_held,
            "hybrid_segments": self.hybrid.held,
            "hybrid_spilled_bytes": self.hybrid.spilled_bytes,
            "tasks": len(self.sessions),
        }
        if self.remote is not None:
            figures.update(self.remote.statistics())
        return figures

    async def close(self) -> None:
        """End sessions, network and memory; idempotent."""
        for session in list(self.sessions):
            session.close("the environment process is shutting down")
        if self.remote is not None:
            await self.remote.close()
        for task in list(self._background):
            task.cancel()
        self.registry.close()
        await self.hybrid.close()
        await self.results.close()
        self.pool.close()
        self.memory.close()

    def schedule_turn(self) -> None:
        """Something is to be looked at when all that has arrived is handled."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_due = False
        gates, self._dirty_gates = self._dirty_gates, {}
        for gate in gates:
            gate.pump()
        self.hybrid.relieve()
        sessions, self._dirty_sessions = self._dirty_sessions, set()
        for session in sessions:
            session.flush()
