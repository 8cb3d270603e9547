# SPDX-License-Identifier: Apache-2.0
"""Running one subtask: gates in turn, outputs finished or failed, everything closed, the first error wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from penstock.graph import (
    RESULT_EDGE,
    InputDeployment,
    JobEdge,
    JobGraph,
    JobVertex,
    OutputDeployment,
    TaskDeployment,
)
from penstock.record import PartitionerSpec
from penstock.shuffle import (
    AttemptId,
    EndOfData,
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    PartitionKind,
    Received,
    ResultPartitionDescriptor,
    Settings,
    ShuffleDescriptor,
)
from penstock.shuffle.errors import PartitionLostError, PlanError, TaskCancelledError
from penstock.task import SubtaskPlan, failure_text, run_subtask
from penstock.task.inputs import UnionGate
from penstock.task.operators import MapInArrow

SCHEMA = pa.schema([("a", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    """A batch of one column."""
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


@dataclass
class Writer:
    """A result partition in memory that remembers its life."""

    partition: PartitionId
    subpartitions: int
    fails_to: str = ""
    written: list[tuple[int, list[int]]] = field(default_factory=list)
    life: list[str] = field(default_factory=list)
    cause: BaseException | None = None

    def _do(self, step: str) -> None:
        self.life.append(step)
        if self.fails_to == step:
            raise OSError(f"cannot {step}")

    def setup(self) -> None:
        """Remember."""
        self._do("setup")

    def write(self, rows: pa.RecordBatch, subpartition: int) -> None:
        """Keep."""
        self.written.append((subpartition, rows.column(0).to_pylist()))

    def broadcast(self, rows: pa.RecordBatch) -> None:
        """Keep as for everybody."""
        self.written.append((-1, rows.column(0).to_pylist()))

    def flush(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Remember."""
        self._do("finish")

    def fingerprint(self) -> int:
        """The same for the same number of batches."""
        return len(self.written)

    def subpartition_bytes(self) -> tuple[int, ...]:
        """As of a pipelined partition."""
        return ()

    def fail(self, cause: BaseException) -> None:
        """Remember why."""
        self.cause = cause
        self._do("fail")

    def close(self) -> None:
        """Remember."""
        self._do("close")


@dataclass
class Gate:
    """An input that plays a script: batches, events, TimeoutError, exceptions."""

    descriptor: InputGateDescriptor
    script: list[Any]
    life: list[str] = field(default_factory=list)

    def setup(self) -> None:
        """Remember."""
        self.life.append("setup")

    def next(self, timeout: float | None = None) -> Received | None:
        """The next of the script."""
        if not self.script:
            return None
        step = self.script.pop(0)
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
    graph = JobGraph("job", (vertex,), tuple(edges), (me,))

    def descriptor(dataset: str) -> ShuffleDescriptor:
        return ShuffleDescriptor(PartitionId(dataset, 0, 7), "memory", kind)

    deployment = TaskDeployment(
        AttemptId("job", me, 0, 7),
        tuple(InputDeployment(i, ((descriptor(f"e{i}"), 0, 1),), confirm) for i in range(inputs)),
        (
            *(OutputDeployment(50 + i, descriptor(f"e{50 + i}"), n) for i, n in enumerate(outputs)),
            OutputDeployment(RESULT_EDGE, descriptor("result"), 1),
        ),
    )
    return SubtaskPlan(graph, vertex, deployment)


def run(
    what: SubtaskPlan, environment: Environment, control: Control | None = None, rows: Any = None
) -> dict[str, float]:
    """Run it with these parts."""
    return run_subtask(what, lambda _: environment, control or Control(), rows, Settings()).metrics  # type: ignore[arg-type, return-value]


def all_values(writer: Writer) -> list[int]:
    """What a writer was given, whatever the subpartition."""
    return sorted(value for _, values in writer.written for value in values)


def test_batches_go_to_every_output() -> None:
    """Events are swallowed; each output gets all rows, split by its own partitioner; figures are counted."""
    environment = Environment({0: [batch(1, 2), EndOfData(), batch(), batch(3)]})
    figures = run(plan(outputs=(2, 3)), environment)
    assert [all_values(writer) for writer in environment.writers] == [[1, 2, 3]] * 3
    assert {subpartition for subpartition, _ in environment.writers[0].written} == {0, 1}
    assert [writer.life for writer in environment.writers] == [["setup", "finish", "close"]] * 3
    assert environment.gates[0].life == ["setup", "close"]
    assert (figures["rows_in"], figures["rows_out"], figures["batches_in"]) == (3, 3, 3)
    assert figures["seconds"] >= 0


def test_rows_of_a_dataframe() -> None:
    """A vertex that reads a DataFrame takes the rows it is handed, and says so where there are none."""
    environment = Environment()
    run(plan(inputs=0), environment, rows=iter([batch(5)]))
    assert all_values(environment.writers[0]) == [5]
    with pytest.raises(PlanError, match="was given no rows"):
        run(plan(inputs=0), Environment())


def test_several_gates_are_read_in_turn() -> None:
    """A gate that has nothing yet does not hold up the others; all are read to their ends."""
    scripts = {0: [TimeoutError(), batch(1), TimeoutError(), batch(2)], 1: [batch(10), batch(20)]}
    environment = Environment(dict(scripts))
    run(plan(inputs=2), environment)
    assert all_values(environment.writers[1]) == [1, 2, 10, 20]


def test_union_gate_is_fair_and_has_a_deadline() -> None:
    """Turns alternate; when nothing comes, TimeoutError says how long and on how many gates."""
    descriptor = InputGateDescriptor(0, SCHEMA, ())
    gates = [Gate(descriptor, [batch(n)] * 3) for n in (1, 2)]
    union = UnionGate(gates)  # type: ignore[arg-type]
    order = []
    while (received := union.next(1.0)) is not None:
        assert received.batch is not None
        order.append(received.batch.column(0)[0].as_py())
    assert order == [1, 2, 1, 2, 1, 2]
    silent = UnionGate([Gate(descriptor, [TimeoutError()] * 1000) for _ in range(2)])  # type: ignore[list-item]
    with pytest.raises(TimeoutError, match="on 2 gates"):
        silent.next(0.0)


@pytest.mark.parametrize("confirm", [True, False])
def test_producers_are_confirmed_before_the_end(confirm: bool) -> None:
    """Only where a gate asks for it; a refusal fails the outputs instead of finishing them."""
    control = Control()
    run(plan(confirm=confirm), Environment({0: [batch(1)]}), control)
    assert control.awaited == int(confirm)
    if confirm:
        environment = Environment({0: [batch(1)]})
        refusal = PartitionLostError("a producer was cancelled")
        with pytest.raises(PartitionLostError):
            run(plan(confirm=True), environment, Control(refusal=refusal))
        assert environment.writers[0].cause is refusal
        assert "finish" not in environment.writers[0].life


def test_a_failing_function_fails_the_outputs() -> None:
    """The original exception comes out, noted with the operator, and its text shows the user's frames only."""

    def boom(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for item in batches:
            if item.num_rows == 1:
                raise ZeroDivisionError("in my function")
            yield item

    environment = Environment({0: [batch(1, 2), batch(3)]})
    chain = (
        MapInArrow(lambda items: items, SCHEMA),
        MapInArrow(boom, SCHEMA),
        MapInArrow(lambda items: items, SCHEMA),
    )
    with pytest.raises(ZeroDivisionError) as caught:
        run(plan(chain), environment)
    assert [writer.life for writer in environment.writers] == [["setup", "fail", "close"]] * 2
    assert environment.writers[0].cause is caught.value
    assert environment.gates[0].life == ["setup", "close"]
    assert caught.value.__notes__ == ["raised in mapInArrow(boom) of middle (stage 99, subtask 0)"]
    text = failure_text(caught.value)
    assert "in boom" in text
    assert "ZeroDivisionError: in my function\nraised in mapInArrow(boom)" in text
    assert "penstock/task" not in text


def test_a_failing_input_is_not_the_functions_fault() -> None:
    """An error of a gate passes through user code without a note."""
    environment = Environment({0: [batch(1), PartitionLostError("gone")]})
    with pytest.raises(PartitionLostError) as caught:
        run(plan((MapInArrow(lambda items: iter(list(items)), SCHEMA),)), environment)
    assert not getattr(caught.value, "__notes__", [])


def test_cleanup_runs_in_functions_that_are_stopped() -> None:
    """A user's generator is closed when another part of the chain fails."""
    story = []

    def careful(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        finally:
            story.append("closed")

    def boom(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        next(batches)
        raise ValueError("stop here")
        yield

    with pytest.raises(ValueError, match="stop here"):
        run(plan((MapInArrow(careful, SCHEMA), MapInArrow(boom, SCHEMA))), Environment({0: [batch(1), batch(2)]}))
    assert story == ["closed"]


def test_a_function_may_end_early() -> None:
    """The gate is closed before its end, the outputs are finished."""
    environment = Environment({0: [batch(1), batch(2), batch(3)]})
    run(plan((MapInArrow(lambda items: iter([next(items)]), SCHEMA),)), environment)
    assert all_values(environment.writers[1]) == [1]
    assert environment.writers[1].life[-2:] == ["finish", "close"]
    assert environment.gates[0].script
    assert environment.gates[0].life == ["setup", "close"]


def test_cancelling_is_seen_between_batches() -> None:
    """A cancelled task stops with TaskCancelledError and fails its outputs."""
    environment = Environment({0: [batch(n) for n in range(100)]})
    with pytest.raises(TaskCancelledError):
        run(plan(), environment, Control(looks=6))
    assert "fail" in environment.writers[0].life
    assert environment.gates[0].script


@pytest.mark.parametrize("step", ["setup", "finish", "close"])
def test_the_first_error_wins_and_all_is_closed(step: str) -> None:
    """Whatever an output refuses to do is raised, and every writer and gate is closed all the same."""
    environment = Environment({0: [batch(1)]}, writer_fails_to=step)
    with pytest.raises(OSError, match=f"cannot {step}"):
        run(plan(), environment)
    assert all("close" in part.life for part in (*environment.writers, *environment.gates))


def test_a_failing_fail_hides_nothing() -> None:
    """When giving up an output fails too, the user still sees the first error."""
    environment = Environment({0: [ValueError("first")]}, writer_fails_to="fail")
    with pytest.raises(ValueError, match="first"):
        run(plan(), environment)
