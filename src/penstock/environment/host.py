# SPDX-License-Identifier: Apache-2.0
"""One environment process: puts its parts together, gives its figures, and ends them.

Everything here runs on the event loop's thread. The parts own their state and are given what they use of each other;
none is given the host. The host alone knows its identity, and that it ends.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Final

from penstock.buffer import SegmentMemory
from penstock.connection.door import Door
from penstock.connection.handshake import Service
from penstock.connection.sockets import SocketEndpoint
from penstock.environment.config import HostConfig, fresh_access
from penstock.environment.control import LinkTimes, MasterLink, NoMaster
from penstock.environment.figures import channel_figures, partition_figures, task_figures
from penstock.environment.limits import refuse_too_little_space
from penstock.environment.memory import PIPELINED_AHEAD_SHARE, Allowance, HostMemory, MemoryArbiter
from penstock.environment.partitions.folders import Folders
from penstock.environment.partitions.found import Partitions
from penstock.environment.partitions.producers import Producers
from penstock.environment.partitions.sort_buffers import SortBuffers
from penstock.environment.partitions.storage import Storage
from penstock.environment.partitions.stored import StoredPartitions
from penstock.environment.peers.addresses import DataAddresses
from penstock.environment.peers.remote import RemoteExchange
from penstock.environment.ports.inputs import GateParts
from penstock.environment.ports.waiting_supply import WaitingMemory
from penstock.environment.ports.writers import Writers
from penstock.environment.reading.file_reads import FileReads
from penstock.environment.supervision import Supervisor
from penstock.environment.task_frames import TaskFrames
from penstock.environment.tasks.attached import AttachedTask
from penstock.environment.tasks.calls import Services, TaskCalls
from penstock.environment.tasks.checkpoint_files import CheckpointFiles
from penstock.environment.tasks.deaths import Deaths
from penstock.environment.tasks.session import TaskSession, peer_pid
from penstock.environment.tasks.task_registry import TaskRegistry
from penstock.environment.throttling import Coordinator, Throttling, other_coordinator
from penstock.environment.turn import Turn
from penstock.environment.uses import HostUses
from penstock.errors import ProtocolError, SettingError
from penstock.link import commands
from penstock.link.master import Heartbeat, PartitionConsumable
from penstock.link.welcome import Welcome, welcome_frame
from penstock.link.wire import Done
from penstock.machine.memory import machine_memory, resident_memory
from penstock.observe.endpoint import MetricsEndpoint
from penstock.observe.samples import Sample, heartbeat_samples
from penstock.partition.registry import PartitionRegistry
from penstock.shuffle import PartitionId
from penstock.shuffle.actions import CheckpointGivenUp
from penstock.shuffle.metrics import PEAK_RESIDENT, RESIDENT

log = logging.getLogger("penstock.environment")

_FOR_TASKS: Final = (commands.ReleasePartitions, commands.UpdatePartitionInfo)
"""The commands that a task may give although a JobMaster owns the environment."""


class Host:
    """One environment process."""

    def __init__(self, config: HostConfig) -> None:
        loop, settings = asyncio.get_running_loop(), config.settings
        self.config = config
        access = fresh_access(config)
        self.credentials = access.credentials
        self.address = ""
        self._addresses: DataAddresses | None = None
        self._opening = asyncio.Lock()
        self.stopping = asyncio.Event()
        self.supervisor = Supervisor(self.stop)
        self.turn = Turn(loop.call_soon)
        network, blocking = settings.network, settings.blocking
        count = network.memory_on(machine_memory()) // network.segment_size
        refuse_too_little_space(count * network.segment_size)
        segments = SegmentMemory.create(count, network.segment_size, "penstock")
        self.memory = HostMemory.of(segments)
        self.arbiter = MemoryArbiter(self.memory, self.turn.wake)
        self.turn.relieve = self.arbiter.relieve
        name = self.credentials.identity
        self.registry = PartitionRegistry(name)
        self.partitions = Partitions(self.registry, loop.time)
        self.task_registry = TaskRegistry()
        self._door = Door(Service.TASKS, self.credentials, self._enter)
        self.reads = FileReads(blocking.read_memory, network.segment_size)
        folders = Folders(config.place, blocking)
        buffers = SortBuffers(self.memory.pool, network.segment_size)
        self._uses = HostUses()
        self.deaths = Deaths()
        self.storage = Storage(folders, self.reads, blocking.reserve)
        producers = Producers(name, self.registry, self.consumable)
        self.stored = StoredPartitions(producers, self.memory, self.arbiter, self.storage)
        self.remote = RemoteExchange(access, self.partitions, self.memory, network, self.supervisor)
        self.master: MasterLink | NoMaster = NoMaster()
        if config.master:
            self.master = MasterLink(
                config.master, access, self, self.supervisor, LinkTimes(settings.environment.lease_timeout)
            )
        self.throttling = Throttling(self.task_registry.tasks)
        self.throttling.coordinator = self._coordinator()
        self.remote.on_flag = lambda gate, is_raised: self.throttling.flag(gate, is_raised=is_raised)
        self._endpoint = MetricsEndpoint(settings.observe, self._samples)
        self.checkpoint_files = CheckpointFiles(name, self.master.ask)
        ahead = Allowance(count // PIPELINED_AHEAD_SHARE)
        self.writers = Writers(producers, WaitingMemory(self.memory, ahead, network), self.stored, buffers)
        self._services = Services(
            self.writers,
            self.partitions,
            self.storage,
            GateParts(name, self.partitions, self.turn, self.task_registry.leave, self.remote.open),
            self.task_registry,
            self.checkpoint_files,
            self.master,
            self,
            self.supervisor,
            self.throttling,
        )

    def _coordinator(self) -> Coordinator:
        """The keeper of the flags of gates under `throttle`."""
        named = self.config.settings.network.throttle_coordinator
        if not named:
            return self.master
        return other_coordinator(named, self.config.application, self.environment, self.throttling.told)

    @property
    def environment(self) -> str:
        """Its name."""
        return self.credentials.identity

    @property
    def is_owned(self) -> bool:
        """True if a JobMaster owns it."""
        return isinstance(self.master, MasterLink)

    @property
    def is_idle(self) -> bool:
        """True if no task is attached."""
        return not self.task_registry.tasks

    async def start(self, addresses: DataAddresses) -> None:
        """Serve others at one of these addresses, and attach to the JobMaster; raises ControlError, SettingError."""
        self._addresses = addresses
        if self.config.serves:
            await self.serve()
        try:
            await self._endpoint.open()
        except SettingError as error:  # the driver has checked the setting; this host has too many processes
            log.warning("this environment serves no metrics, but the driver has them: %s", error)
        if isinstance(self.master, MasterLink):
            await self.master.start(self.address)

    async def serve(self) -> str:
        """Open the port at which others read its partitions, where it is not open yet; raises SettingError."""
        async with self._opening:
            if not self.address and self._addresses is not None:
                self.address = await self.remote.listen(self._addresses)
        return self.address

    def accept(self, connection: socket.socket) -> None:
        """A task connects; raises AuthenticationError where its process is another user's."""
        self._door.come(SocketEndpoint(connection, f"pid {peer_pid(connection)}"))

    def _enter(self, endpoint: SocketEndpoint, _: str) -> None:
        """A task has proved itself."""
        pid = peer_pid(endpoint.connected)
        segments = self.memory.segments
        welcome = Welcome(self.environment, self.address, segments.count, segments.segment_size)
        to_task = TaskFrames(endpoint, self.turn)
        task = AttachedTask(to_task, self.memory.references.attach(f"pid {pid} session {id(to_task):x}"), pid)
        task.on_disk_work = self._uses.task_told
        session = TaskSession(endpoint, task, TaskCalls(task, self._services), self.deaths)
        session.start(welcome_frame(welcome), segments.fd)

    def stop(self, reason: str) -> None:
        """The environment ends, for this reason."""
        if not self.stopping.is_set():
            log.info("the environment ends: %s", reason)
        self.stopping.set()

    def consumable(self, partition: PartitionId) -> None:
        """The partition can be consumed: at its first buffer, or complete."""
        self.master.report(PartitionConsumable(partition))

    def obey(self, command: commands.Command, *, from_task: bool = False) -> object:
        """Do what the JobMaster, or where there is none a tool, has said; the answer."""
        if from_task and self.is_owned and not isinstance(command, _FOR_TASKS):
            raise ProtocolError("this environment belongs to a JobMaster: only that may command it")
        match command:
            case commands.CancelTask():
                self.task_registry.cancel(command)
            case commands.TaskAction():
                if isinstance(command.action, CheckpointGivenUp):
                    self.checkpoint_files.given_up(command.attempt, command.action.checkpoint)
                self.task_registry.act(command)
            case commands.UpdatePartitionInfo():
                return commands.Updated(self.task_registry.update(command.attempt, command.descriptor))
            case commands.ReleasePartitions():
                self.registry.release(command.partitions)
            case commands.ExpirePartitions():
                self.registry.expire(command.partitions)
            case commands.ReleaseJob():
                self.registry.release_job(command.job)
                self.task_registry.forget_job(command.job)
                self.throttling.forget(command.job)
            case commands.PauseSources():
                self.throttling.told(command.job, is_raised=command.is_raised)
            case commands.Shutdown():
                self.stop("it was told to")
        return Done()

    def occupying(self) -> list[PartitionId]:
        """The partitions that hold memory or files here."""
        return self.registry.occupying()

    def heartbeat(self) -> Heartbeat:
        """Its figures, and those of its tasks."""
        tasks, segment_size = self.task_registry.tasks, self.config.settings.network.segment_size
        return Heartbeat(
            self.environment,
            self.statistics(),
            task_figures(tasks, self.remote),
            partitions=partition_figures(self.registry, segment_size),
            channels=channel_figures(tasks) if self.config.settings.observe.detailed_metrics else (),
            metrics=self._endpoint.address,
            uses=self._uses.figures(tasks),
        )

    def _samples(self) -> Iterator[Sample]:
        return heartbeat_samples(self.heartbeat())

    def statistics(self) -> dict[str, float]:
        """Figures for the heartbeat."""
        resident, peak = resident_memory()
        return {
            **self.memory.figures(),
            RESIDENT: resident,
            PEAK_RESIDENT: peak,
            "hybrid_segments": self.arbiter.held,
            "partitions": len(self.registry),
            "read_bytes_held": self.reads.bytes_held,
            "hybrid_spilled_bytes": self.storage.stored_bytes,
            "tasks": len(self.task_registry.tasks),
            **self.remote.statistics(),
        }

    async def close(self) -> None:
        """End sessions, network and memory; idempotent."""
        self._door.close()
        for task in list(self.task_registry.tasks):
            task.end_session("the environment process is shutting down")
        await self._endpoint.close()
        self.checkpoint_files.close()
        await self.supervisor.close()
        await self.remote.close()
        await self.throttling.close()
        await self.master.close()
        self.registry.close()
        await self.storage.close()
        await self.reads.close()
        self.memory.close()
