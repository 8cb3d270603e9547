# SPDX-License-Identifier: Apache-2.0
"""Runs one subtask: inputs, chain of operators, outputs.

Rules: outputs are set up before inputs. Operators are chained (`batch_loop`), so one batch is under way at a time and
a blocked output stops the input. On success all outputs are finished; on any error all of them are failed with it;
in any case everything is closed, and the first error wins. A chain that ends before its input closes the gates, and
their producers drop what they still have. A task whose rows are not wanted any more is told so between two batches,
of any operator: it ends well, its outputs are failed, so that no reader takes them for whole, and it has no sizes and
no fingerprints. Nothing here knows Spark, sockets or processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.errors import NotWantedError, PlanError
from penstock.graph import RESULT_EDGE, JobGraph, JobVertex, TaskDeployment
from penstock.operators.memory import TaskMemory, limited_memory
from penstock.record import RecordWriter
from penstock.record.row_sizes import LARGEST_BATCH, BatchBytes, cut_at_bytes
from penstock.settings import Settings
from penstock.shuffle import InputGate, MetricGroup, OwnerContext, PartitionEnd, ShuffleEnvironment
from penstock.shuffle.metrics import OPERATOR_GROUP, READING, SERVICE_GROUP, WRITING
from penstock.task.batch_loop import BatchLoop, groups
from penstock.task.blocking import BlockingWriter
from penstock.task.chain import chained
from penstock.task.control import TaskControl
from penstock.task.endpoints import exchange_of, input_gate, result_partition
from penstock.task.failure import Blame
from penstock.task.inputs import TaskInput
from penstock.task.operator_clock import Batches, OperatorClock
from penstock.task.summary import SummaryWriter

_REPORT_SECONDS = 0.5

EnvironmentOf = Callable[[str], ShuffleEnvironment]
"""The shuffle environment of a service, by the service's name."""


class _Closable(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SubtaskPlan:
    """The work to run: the whole graph, the vertex, and the JobMaster's words about this attempt."""

    graph: JobGraph
    vertex: JobVertex
    deployment: TaskDeployment

    @property
    def place(self) -> str:
        """The name for messages."""
        return f"{self.vertex.name} (stage {self.vertex.id}, subtask {self.deployment.attempt.subtask})"


@dataclass(frozen=True, slots=True)
class SubtaskReport:
    """The report of one subtask.

    The figures are rows_in, rows_out, bytes_in, bytes_out, batches_in, batches_out, seconds, idle_seconds (waiting
    for input), back_pressured_seconds (waiting to write), spilled_bytes, the seconds of each operator under
    `operator.`, and whatever the service's writers and gates count, under `service.`. `sizes` holds, per output that
    is a stored partition, the bytes of each subpartition, and `fingerprints`, per output, a number that is the same
    for the same rows. `left` are the inputs that it has not read to their end, and `is_cut` says that its rows
    were not wanted any more before it had written them all.
    """

    metrics: dict[str, float]
    sizes: dict[int, tuple[int, ...]]
    fingerprints: dict[int, int]
    left: tuple[int, ...] = ()
    is_cut: bool = False


def run_subtask(
    plan: SubtaskPlan,
    environment_of: EnvironmentOf,
    control: TaskControl,
    rows: Iterator[pa.RecordBatch] | None,
    settings: Settings,
) -> SubtaskReport:
    """Run it to its end, or raise what went wrong first; `rows` is the input of a vertex that reads a DataFrame."""
    task = _Task(plan, control, settings)
    memory = TaskMemory.of(settings, plan.deployment.attempt.subtask)
    is_cut = False
    try:
        task.open_outputs(environment_of)
        task.open_inputs(environment_of)
        with limited_memory(memory):
            task.move(task.inputs(rows))
        task.finish()
    except NotWantedError as unwanted:
        task.fail(unwanted)
        is_cut = True
    except BaseException as error:
        task.fail(error)
        raise
    finally:
        task.close()
    metrics = {**task.metrics(), "spilled_bytes": memory.spilled_bytes}
    if is_cut:
        return SubtaskReport(metrics, {}, {}, task.left(), is_cut=True)
    return SubtaskReport(metrics, task.sizes(), task.fingerprints(), task.left())


class _Task:
    """One run."""

    def __init__(self, plan: SubtaskPlan, control: TaskControl, settings: Settings) -> None:
        self._plan = plan
        self._control = control
        self._settings = settings
        self._owner = OwnerContext(plan.deployment.attempt, plan.place, MetricGroup("task"))
        self._targets: list[BlockingWriter] = []
        self._writers: list[RecordWriter | SummaryWriter] = []
        self._gates: list[InputGate] = []
        self._input = TaskInput((), control)
        self._bytes_of = BatchBytes()
        self._counts = dict.fromkeys(("rows_in", "rows_out", "bytes_in", "bytes_out", "batches_in", "batches_out"), 0)
        self._times = OperatorClock(WRITING)
        self._process = os.getpid()
        self._began = self._reported = time.monotonic()
        self._failed = False
        self._ends: dict[int, PartitionEnd] = {}
        """Of the finished outputs, by edge."""

    def open_outputs(self, environment_of: EnvironmentOf) -> None:
        plan = self._plan
        for output in plan.deployment.outputs:
            descriptor = result_partition(plan.graph, plan.vertex, output)
            environment = environment_of(descriptor.shuffle.service)
            (made,) = environment.create_result_partition_writers(self._owner, [descriptor])
            target = BlockingWriter(made, self._control, self._owner.metrics, self._tell)
            self._targets.append(target)
            intake = target.setup()
            partitioner = exchange_of(plan.graph, output.edge).build(
                output.subpartitions, plan.deployment.attempt.subtask
            )
            # A blocking partition can't be read before its end.
            flush_timeout = self._settings.network.flush_timeout if descriptor.partition.kind.pipelined else -1
            writer = RecordWriter(partitioner, target, intake, flush_timeout)
            summary = None if output.edge == RESULT_EDGE else plan.graph.edge(output.edge).summary
            self._writers.append(writer if summary is None else SummaryWriter(summary, writer))

    def open_inputs(self, environment_of: EnvironmentOf) -> None:
        graph = self._plan.graph
        for deployed in self._plan.deployment.inputs:
            edge = graph.edge(deployed.edge)
            (gate,) = environment_of(edge.service).create_input_gates(self._owner, [input_gate(graph, deployed)])
            self._gates.append(gate)
            gate.setup()
        self._input = TaskInput(self._gates, self._control, self._owner.metrics, self._tell)

    def inputs(self, rows: Iterator[pa.RecordBatch] | None) -> list[Iterator[pa.RecordBatch]]:
        """The batches to work on, one iterator for each side; one for a vertex without `combine`."""
        vertex = self._plan.vertex
        if vertex.source is not None:
            return [vertex.source.read(self._plan.deployment.attempt.subtask, vertex.parallelism)]
        if vertex.reads_dataframe:
            if rows is None:
                raise PlanError(f"{self._plan.place} reads a DataFrame and was given no rows")
            return [rows]
        if vertex.combine is None:
            return [self._input.batches()]
        side_of = [self._plan.graph.edge(deployed.edge).side for deployed in self._plan.deployment.inputs]
        return self._input.sides(side_of, max(side_of) + 1, getattr(vertex.combine, "needed_sides", ()))

    def move(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> None:
        """Pull the whole input through the chain into the outputs."""
        blame = Blame()
        combine, operators = chained(self._plan.vertex.combine, self._plan.vertex.operators, self._is_kept)
        timed, place = self._times.timed, self._plan.place
        chain: list[Batches] = [timed(READING, blame.input(self._counted(side))) for side in inputs]
        if combine is not None:
            chain.append(timed(combine.name, blame.combine(combine, tuple(chain), place)))
        for group in groups(operators):
            given = self._breathing(chain[-1]) if combine is not None or len(chain) > 1 else chain[-1]
            if isinstance(group, list):
                loop = BatchLoop(group, place, self._times, blame, self._breathe)
                chain.append(loop.batches(given))
            else:
                chain.append(timed(group.name, blame.operator(group, given, place)))
        try:
            for batch in chain[-1]:
                self._write(batch)
        finally:
            self._end_forked()
            # A chain that was not read to its end still holds the user's generators: let them clean up now.
            for part in reversed(chain):
                part.close()

    def finish(self) -> None:
        self._control.check_cancelled()
        for output, writer in zip(self._plan.deployment.outputs, self._writers, strict=True):
            self._ends[output.edge] = writer.finish()

    def fail(self, cause: BaseException) -> None:
        for target in self._targets:
            # The cause is what the caller must see, not that a broken output could not be told.
            with suppress(Exception):
                target.close(cause)
        self._failed = True

    def close(self) -> None:
        """Close all, each in any case; an error here counts only where there was none before."""
        first: BaseException | None = None
        closing: list[_Closable] = [*self._gates, *self._writers, *self._targets]
        for part in closing:
            try:
                part.close()
            except BaseException as error:  # noqa: BLE001 - the rest must be closed, then it is raised
                first = first or error
        if first is not None and not self._failed:
            raise first

    def sizes(self) -> dict[int, tuple[int, ...]]:
        outputs = self._plan.deployment.outputs
        return {each.edge: self._ends[each.edge].sizes for each in outputs if not each.descriptor.kind.runs_together}

    def fingerprints(self) -> dict[int, int]:
        return {edge: end.fingerprint for edge, end in self._ends.items()}

    def left(self) -> tuple[int, ...]:
        """The edges that were not read to their end."""
        return self._input.left

    def metrics(self) -> dict[str, float]:
        inner = self._owner.metrics.snapshot()
        waited = sum(value for name, value in inner.items() if name.endswith("back_pressured_seconds"))
        figures: dict[str, float] = dict(self._counts)
        figures["seconds"] = time.monotonic() - self._began
        figures["idle_seconds"] = self._input.idle_seconds
        figures["back_pressured_seconds"] = waited
        figures.update((SERVICE_GROUP + name, value) for name, value in inner.items())
        figures.update((OPERATOR_GROUP + name, value) for name, value in self._operators(waited).items())
        return figures

    def _operators(self, waited: float) -> dict[str, float]:
        """Their times; waits for input and for room are no work."""
        seconds = self._times.seconds()
        reading = [name for name in seconds if name.startswith(READING)]
        together = sum(seconds.pop(name) for name in reading)
        seconds[READING] = max(0.0, together - self._input.idle_seconds)
        seconds[WRITING] = max(0.0, seconds[WRITING] - waited)
        return seconds

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts, bytes_of = self._counts, BatchBytes()
        for batch in batches:
            size = bytes_of(batch)
            counts["rows_in"] += batch.num_rows
            counts["bytes_in"] += size
            for part in (batch,) if size <= LARGEST_BATCH else cut_at_bytes(batch):
                counts["batches_in"] += 1
                self._breathe()
                yield part

    def _breathing(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches between two operators: the second one may give none for a long time."""
        for batch in batches:
            self._breathe()
            yield batch

    def _write(self, batch: pa.RecordBatch) -> None:
        self._breathe()
        counts = self._counts
        counts["rows_out"] += batch.num_rows
        counts["bytes_out"] += self._bytes_of(batch)
        counts["batches_out"] += 1
        for writer in self._writers:
            writer.write(batch)

    def _is_kept(self, batch: pa.RecordBatch) -> bool:
        return any(writer.keeps(batch) for writer in self._writers)

    def _breathe(self) -> None:
        """Between batches: stop if told to, and say how far it is."""
        self._end_forked()
        self._control.check_cancelled()
        self._tell()

    def _tell(self) -> None:
        """Say how far it is, where that is due; also while it waits: who is silent looks as if it worked."""
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            self._control.report(self.metrics())

    def _end_forked(self) -> None:
        """End here if this is a child that the user's function forked and that came back out of it.

        It shares sockets and memory with the task: what it went on to write would stand among the task's rows.
        """
        if os.getpid() != self._process:
            sys.stderr.write(f"{self._plan.place}: a child that a function forked came back into the task\n")
            sys.stderr.flush()
            os._exit(1)
