# SPDX-License-Identifier: Apache-2.0
"""Runs one subtask of a streaming query: opens what its plan says, restores its state, and lets the loop run.

Rules: outputs are set up before inputs, operators are opened ahead of the first row, and the source last. On any
error all outputs are failed with it; in any case everything is closed, and the first error wins. Exchanges by key
deal out key groups. The parts of a checkpoint are named `<uid of the vertex>.<subtask>`, their chunks
`<uid of the operator>/<name>`, the source's `source/position`.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import cast

from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.log_files import LogName, log_folder
from penstock.checkpoint.metadata import PartHandle
from penstock.checkpoint.storage import PartStorage
from penstock.errors import PlanError
from penstock.graph import OutputDeployment
from penstock.graph.streaming import EXACTLY_ONCE, part_name, vertex_of_part
from penstock.machine.shared_numbers import SharedNumbers
from penstock.operators.memory import TaskMemory, limited_memory
from penstock.settings import Settings, StreamingSettings
from penstock.shuffle import InputGate, MetricGroup, OwnerContext, ResultPartitionWriter
from penstock.shuffle.metrics import SERVICE_GROUP
from penstock.shuffle.streaming import HostStore, Mailbox
from penstock.stream.chain import StepContext
from penstock.stream.channels_again import NOBODY
from penstock.stream.conversation import Conversation, Counted
from penstock.stream.event_time import EventTime
from penstock.stream.in_flight import allows_overtaking, edge_uids, uid_of
from penstock.stream.input_again import InputAgain, LoggedChannel
from penstock.stream.inputs import StreamInputs
from penstock.stream.key_sample import FrequentKeys
from penstock.stream.log_reader import LogReader
from penstock.stream.loop import ROWS_STATE, SOURCE_STATE, StreamLoop, TaskParts
from penstock.stream.outputs import OutputChannels, StreamOutput, StreamOutputs
from penstock.stream.outside import outside
from penstock.stream.pace import Pace
from penstock.stream.persisting import AtCheckpoint, Continuous, ForReaders, Persisting
from penstock.stream.restored_rows import FormerPlan, RowsReader
from penstock.stream.restored_state import StoredState
from penstock.stream.row_counts import CountedChannels, RowCounts, Uncounted
from penstock.stream.row_log import RowLog
from penstock.stream.sources import OutsideReader, SourceReader, StreamSource
from penstock.stream.state_place import StateFiles, state_in
from penstock.stream.step_clock import StepClock
from penstock.stream.steps import chain_of
from penstock.stream.storing import SnapshotStore
from penstock.task.endpoints import exchange_of, input_gate, result_partition
from penstock.task.runner import EnvironmentOf, SubtaskPlan, SubtaskReport

_LOG = logging.getLogger("penstock.stream")

RestoredPart = tuple[str, PartHandle]
"""A part's name, and where it lies."""


@dataclass(frozen=True, slots=True)
class StreamTaskPlan:
    """The needs of a subtask of a streaming query besides its `SubtaskPlan`.

    `location` is the checkpoints' URI, empty for a query without checkpoints: its tasks then end without a last one.
    `owner` is the location's, `<epoch>-<token>`. `buffer_timeout` is in seconds: 0 shows rows at once, negative ones
    when a segment is full. `restored` holds this subtask's part of the checkpoint to go on from, or where the
    vertex's parallelism has changed the parts of all its subtasks. `is_finished`: the task had finished in that
    checkpoint, and has no more rows to give. `widths` are the stages' numbers of tasks in it, by uid; where they have
    changed, or rows are logged, `restored` also holds parts of the stages in front, for their rows in flight.
    `recover_without_in_flight`: the rows that were in flight are dropped. `rescale_by_function`: a user's function
    may deal them out anew. `logs_in_flight`: rows are logged as they are given out, instead of written while a
    checkpoint is taken; `behind` is the newest checkpoint that was begun before this attempt. `available_now`: a
    source that has ended has caught up only, and waits for the word to stop. `logs_for_readers`: rows are logged for
    tasks that begin anew alone, which read theirs again; `goes_on`: from the positions of the restored part, as the
    tasks in front have run since before it.
    """

    location: str = ""
    owner: str = ""
    consistency: str = EXACTLY_ONCE
    buffer_timeout: float = 0.1
    max_parallelism: int = 128
    restored: tuple[RestoredPart, ...] = ()
    is_finished: bool = False
    recover_without_in_flight: bool = False
    rescale_by_function: bool = False
    widths: tuple[tuple[str, int], ...] = ()
    logs_in_flight: bool = False
    behind: int = 0
    available_now: bool = False
    logs_for_readers: bool = False
    goes_on: bool = False


def run_stream_subtask(
    plan: SubtaskPlan,
    environment_of: EnvironmentOf,
    mailbox: Mailbox,
    settings: Settings,
    streaming: StreamTaskPlan,
    host: HostStore | None = None,
    share: Callable[[int], None] | None = None,
) -> SubtaskReport:
    """Run it until its data has ended and its last checkpoint is complete, or raise what went wrong first.

    `share` makes the counts of a task's rows known to its host, by the descriptor of their memory; without it nothing
    is counted. `host` stores small snapshots together with those of other tasks; without one each has a file.
    """
    task = _StreamTask(plan, mailbox, streaming, settings.streaming, host)
    if share is not None:
        task.count_rows(share)
    memory = TaskMemory.of(settings, plan.deployment.attempt.subtask)
    try:
        files = StateFiles((memory.directory, *memory.others)) if settings.streaming.state_store == FILES else None
        with limited_memory(memory), state_in(files):
            task.open(environment_of)
            task.run()
    except BaseException as error:
        task.fail(error)
        raise
    finally:
        task.close()
    return SubtaskReport(task.metrics(), {}, {})


class _StreamTask:
    """One run of a streaming task."""

    def __init__(
        self,
        plan: SubtaskPlan,
        mailbox: Mailbox,
        streaming: StreamTaskPlan,
        settings: StreamingSettings,
        host: HostStore | None,
    ) -> None:
        self._plan = plan
        self._host = host
        self._settings = settings
        self._mailbox = mailbox
        self._streaming = streaming
        self._attempt = plan.deployment.attempt
        self._owner = OwnerContext(self._attempt, plan.place, MetricGroup("task"))
        self._writers: list[ResultPartitionWriter] = []
        self._gates: list[InputGate] = []
        self._chain = chain_of(plan.vertex)
        self._source: SourceReader | None = None
        self._store: SnapshotStore | None = None
        self._persisting: Persisting = AtCheckpoint()
        self._outputs: StreamOutputs | None = None
        self._step_clock: StepClock | None = None
        self._loop: StreamLoop | None = None
        self._failed = False
        self._dropped = 0
        self._again: InputAgain | None = None
        self._numbers: SharedNumbers | None = None
        self._counts: RowCounts = Uncounted()
        self._edges = edge_uids(plan.graph)

    def count_rows(self, share: Callable[[int], None]) -> None:
        """Count rows by channel, in memory that the host can read when this process was killed."""
        told = self._plan.deployment
        incoming = [
            (each.edge, source.partition.index, first) for each in told.inputs for source, first, _ in each.channels
        ]
        channels = CountedChannels(incoming, [(output.edge, output.subpartitions) for output in told.outputs])
        self._numbers = SharedNumbers(channels.names())
        self._counts = RowCounts(channels, self._numbers, is_kept=self._streaming.logs_for_readers)
        share(self._numbers.descriptor)

    def open(self, environment_of: EnvironmentOf) -> None:
        plan, streaming = self._plan, self._streaming
        states = self._restored()
        self._persisting = self._way_to_persist()
        self._outputs = self._open_outputs(environment_of)
        is_awaited = self._numbers is None
        if not is_awaited:  # rows that come before it can work on them would fill what its producers have
            self._chain.open(self._context(), states)
        inputs = self._open_inputs(environment_of)
        if streaming.restored:
            self._restore_rows(inputs)
        if streaming.logs_for_readers and inputs.channels:
            self._read_again(inputs, states)
        if is_awaited:
            self._chain.open(self._context(), states)
        if not inputs.channels:
            self._source = self._open_source([state[SOURCE_STATE] for state in states if SOURCE_STATE in state])
        if streaming.location:
            part = part_name(uid_of(plan.vertex), self._attempt.subtask)
            # One that had finished speaks of no checkpoint, so the host is not to wait for its word.
            host = None if streaming.is_finished else self._host
            self._store = SnapshotStore(streaming.location, streaming.owner, part, self._mailbox, host)
        counted = Counted(streaming.behind, reads_again=self._again is not None)
        conversation = Conversation(
            inputs.channels,
            counted=None if streaming.consistency == EXACTLY_ONCE else counted,
            # One that had finished comes and goes, and takes part in nothing: it would be told of no checkpoint.
            with_checkpoints=bool(streaming.location) and not streaming.is_finished,
            settles_all=self._persisting.settles_all,
            available_now=self._is_bounded,
        )
        self._step_clock = StepClock()
        parts = TaskParts(
            self._mailbox,
            inputs,
            self._outputs,
            self._chain,
            self._source,
            self._store,
            Pace(self._settings.in_flight_time),
            self._step_clock,
            self._persisting,
            EventTime(
                self._chain,
                inputs.channels,
                self._settings.watermark_interval,
                states,
                inputs.of_gates,
                is_bounded=self._is_bounded,
            ),
            FrequentKeys(self._key_columns()),
            self._counts,
        )
        self._loop = StreamLoop(parts, conversation, time.monotonic)

    def run(self) -> None:
        assert self._loop is not None  # noqa: S101 - opened before
        self._loop.run()

    def metrics(self) -> dict[str, float]:
        if self._loop is None:
            return {}
        inner = {SERVICE_GROUP + name: value for name, value in self._owner.metrics.snapshot().items()}
        return {**inner, "rows_dropped_in_flight": self._dropped, **self._loop.metrics()}

    def fail(self, cause: BaseException) -> None:
        self._failed = True
        if self._outputs is not None:
            self._outputs.fail(cause)

    def close(self) -> None:
        """Close all, each in any case; an error here counts only where there was none before."""
        first: BaseException | None = None
        closing: list[Callable[[], None]] = [gate.close for gate in self._gates]
        parts = (self._source, self._store, self._step_clock, self._again)
        closing += [part.close for part in parts if part is not None]
        closing += [] if self._numbers is None else [self._numbers.close]
        closing += [self._persisting.close, self._chain.close, *(writer.close for writer in self._writers)]
        for close in closing:
            try:
                close()
            except BaseException as error:  # noqa: BLE001 - the rest must be closed, then it is raised
                first = first or error
        if first is not None and not self._failed:
            raise first

    def _open_outputs(self, environment_of: EnvironmentOf) -> StreamOutputs:
        plan, subtask = self._plan, self._attempt.subtask
        outputs = []
        for output in plan.deployment.outputs:
            descriptor = replace(result_partition(plan.graph, plan.vertex, output), is_stream=True)
            environment = environment_of(descriptor.shuffle.service)
            (writer,) = environment.create_result_partition_writers(self._owner, [descriptor])
            self._writers.append(writer)
            writer.setup()
            spec = exchange_of(plan.graph, output.edge)
            if spec.kind == "hash":
                # State follows its keys: they are dealt out by the groups in which it is stored.
                spec = replace(spec, groups=self._streaming.max_parallelism)
            partitioner = spec.build(output.subpartitions, subtask)
            given = None if self._numbers is None else functools.partial(self._counts.given, output.edge)
            outputs.append(StreamOutput(writer, partitioner, self._channels(output), self._persisting, given))
        return StreamOutputs(outputs, plan.vertex.schema, self._streaming.buffer_timeout, self._counts)

    def _open_inputs(self, environment_of: EnvironmentOf) -> StreamInputs:
        graph = self._plan.graph
        for deployed in self._plan.deployment.inputs:
            environment = environment_of(graph.edge(deployed.edge).service)
            (gate,) = environment.create_input_gates(self._owner, [input_gate(graph, deployed)])
            self._gates.append(gate)
            gate.setup()
        edges = [self._edges[deployed.edge] for deployed in self._plan.deployment.inputs]
        return StreamInputs(self._gates, edges, self._attempt.subtask, self._counts)

    def _key_columns(self) -> tuple[str, ...]:
        """The columns by which the rows of all inputs are dealt out; none where these differ, or are our own."""
        graph = self._plan.graph
        keys = {getattr(edge.exchange, "keys", ()) for edge in graph.inputs_of(self._plan.vertex.id)}
        found: tuple[str, ...] = keys.pop() if len(keys) == 1 else ()
        return () if any("#" in name for name in found) else found

    def _channels(self, output: OutputDeployment) -> OutputChannels | None:
        if output.edge not in self._edges:
            return None
        allows = allows_overtaking(self._plan.graph, output.edge)
        return OutputChannels(self._edges[output.edge], self._attempt.subtask, allows)

    def _way_to_persist(self) -> Persisting:
        """A log, where one is wanted and the task takes part in checkpoints."""
        plan, streaming = self._plan, self._streaming
        is_logged = streaming.logs_in_flight or streaming.logs_for_readers
        if not (streaming.location and is_logged) or streaming.is_finished:
            return AtCheckpoint()
        part = part_name(uid_of(plan.vertex), self._attempt.subtask)
        name = LogName(log_folder(streaming.owner), part, self._attempt.attempt, streaming.behind, 0)
        log = RowLog(streaming.location, name, plan.vertex.schema)
        if streaming.logs_for_readers:
            return ForReaders(log)
        inputs = plan.graph.inputs_of(plan.vertex.id)
        logs_inputs = all(allows_overtaking(plan.graph, edge.id) for edge in inputs)
        return Continuous(log, logs_inputs=logs_inputs)

    def _read_again(self, inputs: StreamInputs, states: Sequence[Mapping[str, bytes]]) -> None:
        """Let the inputs go on behind the rows of the restored snapshot, out of the logs of the tasks in front."""
        graph, streaming = self._plan.graph, self._streaming
        if streaming.goes_on and states and ROWS_STATE in states[0]:
            self._counts.restore(states[0][ROWS_STATE])
        channels: list[LoggedChannel] = []
        for deployed in self._plan.deployment.inputs:
            edge = graph.edge(deployed.edge)
            uid = uid_of(graph.vertex(edge.producer))
            for source, first, _ in deployed.channels:
                producer = source.partition.index
                key = ChannelKey("out", self._edges[edge.id], producer, first)
                position = (NOBODY, 0) if self._numbers is None else self._counts.positions()[len(channels)]
                channels.append(LoggedChannel(part_name(uid, producer), key, edge.schema, *position))
        self._again = InputAgain(channels, LogReader(streaming.location, streaming.owner))
        inputs.read_again(self._again)

    def _restore_rows(self, inputs: StreamInputs) -> None:
        """Put the rows in flight of the restored snapshot first in the inputs and outputs."""
        assert self._outputs is not None  # noqa: S101 - opened before
        plan, streaming = self._plan, self._streaming
        then = FormerPlan(
            dict(streaming.widths),
            streaming.max_parallelism,
            by_function=streaming.rescale_by_function,
            logs=streaming.logs_in_flight,
        )
        reader = RowsReader(plan.graph, plan.vertex, self._attempt.subtask, then)
        with self._restoring():
            rows = reader.read(PartStorage(streaming.location), [handle for _, handle in streaming.restored])
        if streaming.recover_without_in_flight:
            if rows.count:
                _LOG.warning("%s: %d rows that were in flight are dropped, as was asked", plan.place, rows.count)
            self._dropped = rows.count
            return
        left = rows.incoming.keys() - inputs.restore(rows.incoming)
        left |= rows.outgoing.keys() - self._outputs.restore(rows.outgoing)
        for key in sorted(left):
            raise CheckpointError(
                f"{plan.place}: the checkpoint to go on from holds rows in flight of {key.chunk}, and this task"
                " has no such channel: restore with the plan and the parallelism that took it, or without the rows"
                " in flight (option recoverWithoutInFlight)"
            )

    def _open_source(self, positions: list[bytes]) -> SourceReader:
        plan = self._plan
        if self._streaming.is_finished:
            return EndedReader()
        if plan.vertex.source is None:
            raise PlanError(f"{plan.place} has neither a source nor inputs: a DataFrame can't be streamed")
        source = cast("StreamSource", plan.vertex.source)
        with outside(f"{plan.place}: {source.name} can't be opened"):
            reader = source.open(self._attempt.subtask, plan.vertex.parallelism, positions)
        return OutsideReader(reader, source.name)

    @property
    def _is_bounded(self) -> bool:
        """True if the run reads what is available, and goes on in another one."""
        streaming = self._streaming
        return streaming.available_now and bool(streaming.location) and not streaming.is_finished

    def _context(self) -> StepContext:
        plan, streaming = self._plan, self._streaming
        return StepContext(
            self._attempt.subtask,
            plan.vertex.parallelism,
            streaming.max_parallelism,
            plan.place,
            streaming.owner,
            self._attempt.attempt,
            streaming.is_finished,
            self._settings.idle_timeout,
            is_bounded=self._is_bounded,
        )

    def _restored(self) -> list[StoredState]:
        """The state of operators and of the source, out of the parts of this vertex."""
        if not self._streaming.restored:
            return []
        uid = uid_of(self._plan.vertex)
        own = [handle for name, handle in self._streaming.restored if vertex_of_part(name)[0] == uid]
        with self._restoring():
            storage = PartStorage(self._streaming.location)
        return [StoredState(storage, handle, self._restoring) for handle in own]

    def _restoring(self) -> AbstractContextManager[None]:
        """A location that is away says nothing of the checkpoint."""
        return outside(f"{self._plan.place}: its part of the checkpoint can't be read")


FILES = "files"
"""The store of state that lies in mapped files."""


class EndedReader:
    """The source of a task that had given all its rows before."""

    is_ended = True
    wake_at = None

    def poll(self, max_rows: int) -> None:
        """There are no more rows."""

    def snapshot(self) -> bytes:
        """There is no position to keep."""
        return b""

    def close(self) -> None:
        """There is nothing to close."""
