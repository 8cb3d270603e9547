# SPDX-License-Identifier: Apache-2.0
"""A streaming query in this process: its tasks in threads, the memory service, a real coordinator and real storage.

The driver's part is played by `LocalQuery`: it starts an attempt of all tasks, drives the checkpoint coordinator by
what they say, and on any task's failure starts the next attempt from the newest checkpoint at the location.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import queue
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.checkpoint import decisions as do
from penstock.checkpoint.barriers import Alignment, encode
from penstock.checkpoint.coordinator import CheckpointCoordinator, CheckpointOptions
from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError, FencedError, UncertainCheckpointError
from penstock.checkpoint.logged_rows import cut
from penstock.checkpoint.metadata import PartHandle, pack_part, unpack_part
from penstock.graph import (
    ExecutionGraph,
    InputDeployment,
    JobEdge,
    JobGraph,
    JobVertex,
    Operator,
    OutputDeployment,
    TaskDeployment,
)
from penstock.graph.restoring import beginning_of, parts_in_front
from penstock.graph.streaming import EXACTLY_ONCE, SavedParts, StreamingOptions, part_name
from penstock.job.core.checkpoints.available_now import AvailableNow
from penstock.job.query_storage import QueryStorage
from penstock.record import PartitionerSpec
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    DatasetId,
    PartitionDescriptor,
    PartitionKind,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironmentContext,
    ShuffleMasterContext,
)
from penstock.shuffle.actions import Action, CheckpointCompleted, CheckpointGivenUp, StopSource, TriggerCheckpoint
from penstock.stream.in_flight import uid_of
from penstock.stream.runner import StreamTaskPlan, run_stream_subtask
from penstock.stream.sources import begun_at, first_positions, sources_of
from penstock.stream.steps import refuse_other_steps
from penstock.task import SubtaskPlan
from penstock.testing import DEADLINE, MemoryShuffleService
from penstock.testing.memory_host import MemoryHost
from penstock.testing.memory_mailbox import MemoryMailbox
from penstock.testing.memory_service import MemoryShuffleEnvironment
from penstock_torture.local_host import LocalHost
from penstock_torture.task_line import Said, Task, TaskLine

_numbers = itertools.count()


def linear_graph(
    source: Any, stages: Iterable[tuple[int, tuple[Operator, ...], pa.Schema, PartitionerSpec | None]]
) -> JobGraph:
    """A line of vertices: parallelism, operators, the schema of what they give, and the exchange in front of each."""
    vertices: list[JobVertex] = []
    edges: list[JobEdge] = []
    for number, (parallelism, operators, schema, spec) in enumerate(stages):
        first = source if number == 0 else None
        vertices.append(JobVertex(number, f"stage {number}", parallelism, schema, first, operators=operators))
        if spec is not None:
            before = vertices[number - 1].schema
            edge = JobEdge(number, number - 1, number, spec, before, PartitionKind.PIPELINED_BOUNDED, "memory")
            edges.append(edge)
    return JobGraph("query", tuple(vertices), tuple(edges))


@dataclass
class LocalQuery:
    """One query. `location` empty: no checkpoints. `options` are the coordinator's."""

    graph: JobGraph
    location: str
    options: CheckpointOptions = field(
        default_factory=lambda: CheckpointOptions(interval=0.02, tolerable_failures=99)
    )
    consistency: str = EXACTLY_ONCE
    message_rows: int = 64
    settings: Settings = field(default_factory=Settings)
    unaligned: bool = False
    aligned_timeout: float = 0.0
    recover_without_in_flight: bool = False
    rescale_by_function: bool = False
    continuous: bool = False
    for_readers: bool = False
    """True if rows are logged for tasks that begin anew alone; here all of them do."""
    ends_fenced: bool = False
    """True if it ends, as with a real driver, when another one has taken the location over."""
    available_now: bool = False
    """True if it stops when its sources have given what was there."""

    def __post_init__(self) -> None:
        vertices = tuple(replace(vertex, uid=uid_of(vertex)) for vertex in self.graph.vertices)
        self.graph = replace(self.graph, vertices=vertices)
        self.said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self.lines: dict[Task, TaskLine] = {}
        self.attempt = -1
        self._is_stopping = self._is_finished = self._stop_goes_on = False
        self._available = AvailableNow()
        self.completed: list[int] = []
        self.declined: list[str] = []
        self.given_up: list[str] = []
        self.finished: set[Task] = set()
        self.failures: list[BaseException] = []
        self.kills = 0
        self._storage: QueryStorage | None = None
        self.owner = ""
        self._newest: dict[str, PartHandle] = {}
        self._kept: deque[SavedParts] = deque()
        """Complete checkpoints, the newest first."""
        if self.location:  # first, for it may fail; a second query at one location goes on from it
            self._claim()
        self._job = f"query{next(_numbers)}"
        self._execution = ExecutionGraph(self.graph)
        self._tasks = [(vertex.id, subtask) for vertex, subtask in self._execution.subtasks()]
        service = MemoryShuffleService(message_rows=self.message_rows)
        self._master = service.create_shuffle_master(ShuffleMasterContext(self._job, self.settings, _ignore))
        self._service = service
        self._attached: dict[Task, tuple[MemoryHost, MemoryShuffleEnvironment]] = {}
        """The newest attempts' own, by task."""
        self._host = LocalHost() if self.unaligned else None
        alignment = Alignment.ALIGNED if self.consistency == EXACTLY_ONCE else Alignment.AT_LEAST_ONCE
        options = replace(
            self.options, alignment=alignment, aligned_timeout=self.aligned_timeout if self.unaligned else None
        )
        self._coordinator = CheckpointCoordinator(options, self._heads)
        self._coordinator.restored(sorted(saved.checkpoint for saved in self._kept))
        self._partitions: dict[tuple[int, int, int], ShuffleDescriptor] = {}
        self._threads: list[threading.Thread] = []
        self._wake: float | None = None

    def __enter__(self) -> LocalQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _claim(self) -> None:
        """As the driver does: look, then claim; raises as these do."""
        options = StreamingOptions("q", "query", self.location, retained=self.options.retained)
        storage = QueryStorage(options, functools.partial(refuse_other_steps, self.graph), sources_of(self.graph))
        storage.look(self._widths)
        self.graph = begun_at(self.graph, storage.first_positions(first_positions(self.graph)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of damaged checkpoints, which some runs make
            storage.claim(self._widths)
        self._storage, self.owner = storage, storage.beginning.owner
        if storage.beginning.saved is not None:
            self._kept.extend((storage.beginning.saved, *storage.beginning.older))

    def start(self) -> None:
        """Start the first attempt, or the next one, from the newest checkpoint."""
        self.attempt += 1
        saved = self._saved()
        beginnings = {
            task: beginning_of(saved, self._uid(task[0]), task[1], self.graph.vertex(task[0]).parallelism)
            for task in self._tasks
        }
        self.finished = {task for task, beginning in beginnings.items() if beginning.is_finished}
        asyncio.run(self._register())
        for vertex, subtask in self._execution.subtasks():
            beginning = beginnings[vertex.id, subtask]
            producers = {self._uid(edge.producer) for edge in self.graph.inputs_of(vertex.id)}
            widths = {uid: self._widths[uid] for uid in producers}
            in_front = parts_in_front(
                saved,
                (self._uid(vertex.id), vertex.parallelism),
                widths,
                takes_all=self._has_logs or saved.is_logged,
            )
            streaming = StreamTaskPlan(
                self.location,
                self.owner,
                self.consistency,
                buffer_timeout=0.001,
                restored=tuple((name, unpack_part(saved.parts[name])) for name in (*beginning.parts, *in_front)),
                widths=tuple(saved.parallelism.items()),
                is_finished=beginning.is_finished,
                recover_without_in_flight=self.recover_without_in_flight,
                rescale_by_function=self.rescale_by_function,
                logs_in_flight=self.continuous,
                logs_for_readers=self.for_readers,
                behind=self._coordinator.latest_begun,
                available_now=self.available_now,
            )
            self._start_task(vertex, subtask, streaming)
        self._available.begun(task for task in self._tasks if self._is_source(task) and task not in self.finished)
        if self._storage is not None:
            self._carry_out(self._coordinator.running(self._tasks, time.monotonic(), self.finished))
        if self._is_stopping:
            self._act(StopSource(self._stop_goes_on), self._tasks)

    def _saved(self) -> SavedParts:
        """The newest checkpoint; raises CheckpointError where a task found it damaged, and there is none before."""
        if self._kept and self.failures and isinstance(self.failures[-1], CorruptCheckpointError):
            damaged = self._kept.popleft()
            if not self._kept:
                raise CheckpointError("no checkpoint is kept before a damaged one") from self.failures[-1]
            self._carry_out(self._coordinator.damaged(damaged.checkpoint))
        return self._kept[0] if self._kept else SavedParts(0, {})

    @property
    def _has_logs(self) -> bool:
        return self.continuous or self.for_readers

    @property
    def _widths(self) -> dict[str, int]:
        return {uid_of(vertex): vertex.parallelism for vertex in self.graph.vertices}

    def _is_source(self, task: Task) -> bool:
        return not self.graph.inputs_of(task[0])

    def _uid(self, vertex: int) -> str:
        return uid_of(self.graph.vertex(vertex))

    def _part(self, task: Any) -> str:
        return part_name(self._uid(task[0]), task[1])

    def kill(self, task: Task) -> None:
        """Have a task fail wherever it is."""
        self.kills += 1
        if task in self._attached:
            host, environment = self._attached[task]
            environment.cancel(AttemptId(self._job, *task, self.attempt))
            host.cancel("it was killed")

    def chunks(self) -> dict[str, int]:
        """The chunks of the newest complete checkpoint, all tasks' together, and their bytes."""
        parts = [unpack_part(packed) for packed in self._kept[0].parts.values()] if self._kept else []
        found: Counter[str] = Counter()
        for chunk in itertools.chain.from_iterable(part.chunks for part in parts):
            found[chunk.name] += chunk.length
        return found

    def stop(self, *, goes_on: bool = False) -> None:
        """Tell all sources to stop, in each attempt from now on; the next query may go on in the same run."""
        self._stop_goes_on = goes_on
        self._available.stopped()
        self._begin_to_stop()

    def _begin_to_stop(self) -> None:
        self._is_stopping = True
        self._carry_out(self._coordinator.stopping(time.monotonic()))
        self._act(StopSource(self._stop_goes_on), self._tasks)

    def run(self, until: float | None = None) -> bool:
        """Be the driver until the query has ended, which gives True, or to this moment; replaces failed attempts."""
        while len(self.finished) < len(self._tasks):
            now = time.monotonic()
            if until is not None and now >= until:
                return False
            if self._wake is not None and now >= self._wake:
                self._wake = None
                self._carry_out(self._coordinator.time_passed(now))
            moments = [moment for moment in (until, self._wake, now + 0.5) if moment is not None]
            try:
                said = self.said.get(timeout=max(0.0, min(moments) - now))
            except queue.Empty:
                continue
            if said.attempt == self.attempt:
                self._hear(said)
        self._finish()
        return True

    def run_until(self, holds: Callable[[], object], what: str) -> None:
        """Run until something holds, in front of the end; AssertionError naming `what` where it does not."""
        end = time.monotonic() + DEADLINE
        while not holds():
            if self.run(time.monotonic() + 0.01):
                raise AssertionError(f"the query ended before {what}")
            if time.monotonic() > end:
                raise AssertionError(f"never: {what}; given up: {self.given_up[-3:]}")

    def run_through(self, seconds: float = DEADLINE) -> None:
        """Run to the end; raises AssertionError where that is not reached in time."""
        if not self.run(time.monotonic() + seconds):
            raise AssertionError(f"the query has not ended: {self.finished} of {self._tasks} have")

    def close(self) -> None:
        """End all tasks, and what they shared."""
        self._end_attempt()
        if self._storage is not None:
            with suppress(OSError, CheckpointError):  # another query may have taken the location over
                self._storage.end()
        self._detach()
        asyncio.run(self._master.close())
        if self._host is not None:
            self._host.close()

    def _finish(self) -> None:
        """Write, as the driver does, that all is read and published, where nobody has stopped the query."""
        if self._storage is not None and not self._is_stopping and not self._is_finished:
            self._is_finished = True
            with suppress(OSError, CheckpointError):  # then the next start goes on from the last checkpoint
                self._storage.finish()

    def _hear(self, said: Said) -> None:
        now = time.monotonic()
        coordinator = self._coordinator
        if said.word == "failed":
            self.failures.append(said.value)
            self._end_attempt()
            self._carry_out(coordinator.interrupted("a task failed", now))
            if self._available.interrupted():
                self._is_stopping = False
                coordinator.going_on()
            if self._storage is not None and self._has_logs:
                with suppress(OSError, CheckpointError):
                    self._storage.discard_logs(coordinator.skip())
            self.start()
        elif said.word == "finished":
            self.finished.add(said.task)
            self._carry_out(coordinator.task_finished(said.task, now))
        elif (
            said.word == "data ended" and self.available_now and not self._is_stopping and self._is_source(said.task)
        ):
            if self._available.caught_up(said.task):
                self._begin_to_stop()
        elif said.word == "data ended":
            self._carry_out(coordinator.data_ended(said.task, now))
        elif said.word == "acknowledged":
            self._carry_out(coordinator.acknowledged(said.checkpoint, said.task, said.value, now))
        elif said.word == "declined":
            self.declined.append(said.value)
            self._carry_out(coordinator.declined(said.checkpoint, said.task, said.value, now))

    def _carry_out(self, decisions: list[do.Decision]) -> None:
        if self._storage is None:
            return
        self._coordinator.check()
        for decision in decisions:
            if isinstance(decision, do.Trigger):
                for head in decision.heads:
                    self._act(TriggerCheckpoint(encode(decision.barrier)), [head])
            elif isinstance(decision, do.Store):
                self._store(self._storage, decision)
            elif isinstance(decision, do.Complete):
                self.completed.append(decision.checkpoint)
                self._act(CheckpointCompleted(decision.checkpoint), self._tasks)
            elif isinstance(decision, do.GiveUp):
                self.given_up.append(decision.cause)
                self._act(CheckpointGivenUp(decision.checkpoint), self._tasks)
                for line in self.lines.values():
                    if line.host is not None:
                        line.host.given_up(decision.checkpoint)
            elif isinstance(decision, do.Discard):
                self._discard(self._storage, decision.checkpoint)
            elif isinstance(decision, do.WakeAt):
                self._wake = decision.time

    def _act(self, action: Action, tasks: Iterable[Any]) -> None:
        for task in tasks:
            if task not in self.finished:
                self.lines[task].act(action)

    def _discard(self, storage: QueryStorage, checkpoint: int) -> None:
        self._kept = deque(saved for saved in self._kept if saved.checkpoint != checkpoint)
        with suppress(OSError, CheckpointError):  # another query may have taken the location over
            storage.discard(checkpoint)

    def _store(self, storage: QueryStorage, decision: do.Store) -> None:
        """Store it; raises UncertainCheckpointError, and FencedError where `ends_fenced`."""
        parts = {self._part(task): unpack_part(handle) for task, handle in decision.handles.items()}  # type: ignore[arg-type]
        finished = frozenset(self._part(task) for task in decision.finished)
        try:
            if self._has_logs:
                parts = cut(parts, self._newest)
            packed = {name: pack_part(part) for name, part in parts.items()}
            is_logged = any(part.positions for part in parts.values())
            saved = SavedParts(decision.checkpoint, packed, finished, self._widths, is_logged=is_logged)
            storage.store(saved)
        except (OSError, CheckpointError) as error:
            if isinstance(error, UncertainCheckpointError) or (isinstance(error, FencedError) and self.ends_fenced):
                raise
            self._carry_out(self._coordinator.store_failed(decision.checkpoint, str(error), time.monotonic()))
        else:
            self._newest = parts
            self._kept.appendleft(saved)
            self._carry_out(self._coordinator.stored(decision.checkpoint, time.monotonic()))
            with suppress(OSError, CheckpointError):
                storage.sweep()

    def _heads(self, finished: Collection[Any]) -> list[Task]:
        running = {task for task in self._tasks if task not in finished}
        with_running = {
            edge.consumer for edge in self.graph.edges for vertex, _ in running if vertex == edge.producer
        }
        return [task for task in self._tasks if task in running and task[0] not in with_running]

    async def _register(self) -> None:
        await self._master.start()
        for vertex, subtask in self._execution.subtasks():
            producer = ProducerDescriptor(AttemptId(self._job, vertex.id, subtask, self.attempt), "local", "")
            for edge in self.graph.outputs_of(vertex.id):
                count = self._execution.subpartitions_of(edge.id, subtask)
                description = PartitionDescriptor(DatasetId(self._job, edge.id), subtask, edge.kind, count)
                self._partitions[vertex.id, edge.id, subtask] = await self._master.register_partition_with_producer(
                    self._job, description, producer
                )

    def _start_task(self, vertex: JobVertex, subtask: int, streaming: StreamTaskPlan) -> None:
        attempt = AttemptId(self._job, vertex.id, subtask, self.attempt)
        inputs = [
            InputDeployment(
                edge.id,
                tuple(
                    (self._partitions[edge.producer, edge.id, partition], first, count)
                    for partition, first, count in self._execution.channels_of(edge.id, subtask)
                ),
                await_confirmation=False,
            )
            for edge in self.graph.inputs_of(vertex.id)
        ]
        outputs = [
            OutputDeployment(
                edge.id,
                self._partitions[vertex.id, edge.id, subtask],
                self._execution.subpartitions_of(edge.id, subtask),
            )
            for edge in self.graph.outputs_of(vertex.id)
        ]
        plan = SubtaskPlan(self.graph, vertex, TaskDeployment(attempt, tuple(inputs), tuple(outputs)))
        task = (vertex.id, subtask)
        host = MemoryHost("local")
        context = ShuffleEnvironmentContext(self._job, b"", self.settings, host)
        environment = self._service.create_shuffle_environment(context)
        self._attached[task] = host, environment
        line = self.lines[task] = TaskLine(MemoryMailbox(host), self.said, self.attempt, task)
        if self._host is not None:
            line.host = self._host.store(attempt, line.stored)
        parts = (plan, line, streaming, environment)
        thread = threading.Thread(target=self._run_task, args=parts, name=f"task-{task}")
        self._threads.append(thread)
        thread.start()

    def _run_task(
        self, plan: SubtaskPlan, line: TaskLine, streaming: StreamTaskPlan, environment: MemoryShuffleEnvironment
    ) -> None:
        attempt = plan.deployment.attempt
        who = (attempt.attempt, (attempt.vertex, attempt.subtask))
        try:
            run_stream_subtask(plan, lambda _: environment, line, self.settings, streaming, line.host)
        except BaseException as error:  # noqa: BLE001 - the driver starts the next attempt
            self.said.put(Said(*who, "failed", value=error))
        else:
            self.said.put(Said(*who, "finished"))

    def _end_attempt(self) -> None:
        for task in self._tasks:
            self.kill(task)
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(DEADLINE)
            if thread.is_alive():
                raise AssertionError(f"{thread.name} does not end")
        self._detach()

    def _detach(self) -> None:
        for _, environment in self._attached.values():
            environment.close()
        self._attached.clear()


def location(folder: Path) -> str:
    """A checkpoint location below a folder."""
    return str(folder / "checkpoints")


def _ignore(error: BaseException) -> None:
    """The in-memory service has no fatal errors."""
