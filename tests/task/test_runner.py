# SPDX-License-Identifier: Apache-2.0
"""Running one subtask: gates in turn, outputs finished or failed, everything closed, the first error wins."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.errors import PartitionLostError, PlanError, TaskCancelledError
from penstock.operators.functions import MapInArrow
from penstock.shuffle import (
    EndOfData,
    InputGateDescriptor,
)
from penstock.task import failure_text
from penstock.task.blocking import BlockingInput
from runner_parts import SCHEMA, Control, Environment, Gate, all_values, batch, plan, run


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


@pytest.mark.parametrize("comes_back", ["returns", "yields", "raises"])
def test_a_forked_child_that_comes_back_writes_nothing(comes_back: str) -> None:
    """It ends where it leaves the user's function; the task's own rows are whole."""
    children = []

    def fork(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            child = os.fork()
            if not child and comes_back == "returns":
                return
            if not child and comes_back == "raises":
                raise ValueError("in the child")
            if child:
                children.append(child)
            yield each

    environment = Environment({0: [batch(1, 2), batch(3)]})
    run(plan(outputs=(2,), operators=(MapInArrow(fork, SCHEMA),)), environment)
    assert all_values(environment.writers[0]) == [1, 2, 3]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [1, 1]


def test_rows_of_a_dataframe() -> None:
    """A vertex that reads a DataFrame takes the rows it is handed, and says so where there are none."""
    environment = Environment()
    run(plan(inputs=0), environment, rows=iter([batch(5)]))
    assert all_values(environment.writers[0]) == [5]
    with pytest.raises(PlanError, match="was given no rows"):
        run(plan(inputs=0), Environment())


def test_rows_come_in_batches_of_bounded_bytes() -> None:
    """A larger batch of any input is cut, also by rows that are large themselves."""
    texts = pa.array(["x" * size for size in (1, 40 << 20, 40 << 20, 70 << 20, 1)])
    environment = Environment()
    whole = pa.RecordBatch.from_arrays([texts], names=["n"])
    sizes: list[int] = []

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            sizes.append(each.num_rows)
            yield batch(*range(each.num_rows))

    figures = run(plan(inputs=0, operators=(MapInArrow(look, SCHEMA),)), environment, rows=iter([whole]))
    assert sizes == [1, 1, 1, 1, 1]
    assert (figures["rows_in"], figures["batches_in"]) == (5, 5)


def test_several_gates_are_read_in_turn() -> None:
    """A gate that has nothing yet does not hold up the others; all are read to their ends."""
    scripts = {0: [None, batch(1), None, batch(2)], 1: [batch(10), batch(20)]}
    environment = Environment(dict(scripts))
    run(plan(inputs=2), environment)
    assert all_values(environment.writers[1]) == [1, 2, 10, 20]


def test_an_input_of_several_gates_is_fair_and_has_a_deadline() -> None:
    """Turns alternate; when nothing comes, TimeoutError says how long and on how many gates."""
    descriptor = InputGateDescriptor(0, SCHEMA, ())
    gates = [Gate(descriptor, [batch(n)] * 3) for n in (1, 2)]
    union = BlockingInput(gates, Control())  # type: ignore[arg-type]
    order = []
    while (received := union.next(1.0)) is not None:
        assert received.batch is not None
        order.append(received.batch.column(0)[0].as_py())
    assert order == [1, 2, 1, 2, 1, 2]
    idle = Control()
    idle.wait = lambda seen, seconds=None: None  # type: ignore[method-assign]
    silent = BlockingInput([Gate(descriptor, [None] * 1000) for _ in range(2)], idle)  # type: ignore[list-item]
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
    assert "penstock/operators" not in text


def test_what_ends_a_process_is_noted_too() -> None:
    """`sys.exit()` in a function, or a panic of a library in Rust, is no subclass of Exception."""

    def leave(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise SystemExit(7)
        yield from batches

    environment = Environment({0: [batch(1)]})
    with pytest.raises(SystemExit) as caught:
        run(plan((MapInArrow(leave, SCHEMA), MapInArrow(lambda items: items, SCHEMA))), environment)
    assert caught.value.__notes__ == ["raised in mapInArrow(leave) of middle (stage 99, subtask 0)"]
    assert [writer.life for writer in environment.writers] == [["setup", "fail", "close"]] * 2


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
    """An error of an output is raised, and every writer and gate is closed all the same."""
    environment = Environment({0: [batch(1)]}, writer_fails_to=step)
    with pytest.raises(OSError, match=f"cannot {step}"):
        run(plan(), environment)
    assert all("close" in part.life for part in (*environment.writers, *environment.gates))


def test_a_failing_fail_hides_nothing() -> None:
    """When giving up an output fails too, the user still sees the first error."""
    environment = Environment({0: [ValueError("first")]}, writer_fails_to="fail")
    with pytest.raises(ValueError, match="first"):
        run(plan(), environment)
