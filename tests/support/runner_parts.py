# SPDX-License-Identifier: Apache-2.0
"""A runner's surroundings in memory: scripted gates, writers that remember their life, a plan around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import TaskCancelledError
from penstock.graph import (
    RESULT_EDGE,
    InputDeployment,
    JobEdge,
    JobGraph,
    JobVertex,
    KeptBy,
    OutputDeployment,
    TaskDeployment,
)
from penstock.record import PartitionerSpec
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    DatasetId,
    EndOfPartition,
    InputGateDescriptor,
    Intake,
    OwnerContext,
    PartitionEnd,
    PartitionId,
    PartitionKind,
    Received,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
)
from penstock.shuffle.splits import Split
from penstock.task import SubtaskPlan, run_subtask

SCHEMA = pa.schema([("a", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    """A batch of one column."""
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


@dataclass
class Writer:
    """A result partition in memory that remembers its life."""

    partition: PartitionId
    subpartitions: int
    has_pending = False
    fails_to: str = ""
    written: list[tuple[int, list[int]]] = field(default_factory=list)
    life: list[str] = field(default_factory=list)
    cause: BaseException | None = None

    def _do(self, step: str) -> None:
        self.life.append(step)
        if self.fails_to == step:
            raise OSError(f"cannot {step}")

    def setup(self) -> Intake:
        """Remember."""
        self._do("setup")
        return Intake()

    def offer(self, split: Split) -> int:
        """Keep."""
        self.written += [(subpartition, rows.column(0).to_pylist()) for subpartition, rows in split]
        return split.rows

    def flush(self) -> None:
        """Nothing."""

    def finish(self) -> PartitionEnd:
        """Remember."""
        self._do("finish")
        return PartitionEnd((EndOfPartition(len(self.written), 0, 0),))

    def close(self, cause: BaseException | None = None) -> None:
        """Remember, and why."""
        self.cause = self.cause or cause
        self._do("close" if cause is None else "fail")


@dataclass
class Gate:
    """An input that plays a script: batches, events, None where nothing is there, exceptions."""

    descriptor: InputGateDescriptor
    script: list[Any]
    life: list[str] = field(default_factory=list)

    def setup(self) -> None:
        """Remember."""
        self.life.append("setup")

    @property
    def is_ended(self) -> bool:
        """True if the script is over."""
        return not self.script

    def poll(self) -> Received | None:
        """The next of the script."""
        step = self.script.pop(0) if self.script else None
        if step is None:
            return None
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, pa.RecordBatch):
            return Received(0, batch=step)
        return Received(0, event=step)

    def close(self) -> None:
        """Remember."""
        self.life.append("close")


@dataclass
class Environment:
    """Gives scripted gates and remembers writers."""

    scripts: dict[int, list[Any]] = field(default_factory=dict)
    writer_fails_to: str = ""
    writers: list[Writer] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)

    def create_result_partition_writers(
        self, owner: OwnerContext, descriptors: Sequence[ResultPartitionDescriptor]
    ) -> list[Writer]:
        """Writers in memory."""
        made = [Writer(d.shuffle.partition, d.partition.subpartitions, self.writer_fails_to) for d in descriptors]
        self.writers += made
        return made

    def create_input_gates(self, owner: OwnerContext, descriptors: Sequence[InputGateDescriptor]) -> list[Gate]:
        """Gates that play their script."""
        made = [Gate(descriptor, self.scripts[descriptor.gate]) for descriptor in descriptors]
        self.gates += made
        return made


@dataclass
class Control:
    """Cancels after a number of looks; remembers what was asked."""

    looks: int = 10**9
    awaited: int = 0
    refusal: Exception | None = None
    arrivals: int = 0

    def wait(self, seen: int, seconds: float | None = None) -> None:
        """Something comes at once."""
        self.arrivals += 1

    def await_producers(self) -> None:
        """Confirmed, or refused."""
        self.awaited += 1
        if self.refusal is not None:
            raise self.refusal

    def check_cancelled(self) -> None:
        """Cancelled when the looks are used up."""
        self.looks -= 1
        if self.looks < 0:
            raise TaskCancelledError("stop")

    def report(self, metrics: Mapping[str, float]) -> None:
        """Not kept."""


def plan(
    operators: tuple[Any, ...] = (), inputs: int = 1, outputs: tuple[int, ...] = (2,), confirm: bool = False
) -> SubtaskPlan:
    """A vertex with some input edges, an output edge per entry with that many subpartitions, and a result."""
    me = 99
    vertex = JobVertex(me, "middle", 1, SCHEMA, reads_dataframe=not inputs, operators=operators)
    kind = PartitionKind.PIPELINED_BOUNDED
    spec = PartitionerSpec("rebalance")
    edges = [JobEdge(i, i, me, spec, SCHEMA, kind, "memory") for i in range(inputs)]
    edges += [JobEdge(50 + i, me, 200 + i, spec, SCHEMA, kind, "memory") for i in range(len(outputs))]
    graph = JobGraph("job", (vertex,), tuple(edges), (me,), kept_by=KeptBy("memory", kind))

    def descriptor(number: int, *, is_result: bool = False) -> ShuffleDescriptor:
        return ShuffleDescriptor(PartitionId(DatasetId("job", number, is_result), 0, 7), "memory", kind)

    deployment = TaskDeployment(
        AttemptId("job", me, 0, 7),
        tuple(InputDeployment(i, ((descriptor(i), 0, 1),), confirm) for i in range(inputs)),
        (
            *(OutputDeployment(50 + i, descriptor(50 + i), n) for i, n in enumerate(outputs)),
            OutputDeployment(RESULT_EDGE, descriptor(0, is_result=True), 1),
        ),
    )
    return SubtaskPlan(graph, vertex, deployment)


def run(
    what: SubtaskPlan, environment: Environment, control: Control | None = None, rows: Any = None
) -> dict[str, float]:
    """Run it with these parts."""
    return run_subtask(what, lambda _: environment, control or Control(), rows, Settings()).metrics  # type: ignore[arg-type, return-value]


def all_values(writer: Writer) -> list[int]:
    """The values that a writer was given, whatever the subpartition."""
    return sorted(value for _, values in writer.written for value in values)
