# SPDX-License-Identifier: Apache-2.0
"""A task whose rows nobody wants any more, and what a task says of the inputs that it leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from penstock.errors import NotWantedError
from penstock.operators.functions import MapInArrow
from penstock.operators.groups import Side
from penstock.operators.join import EquiJoin, join_schema
from penstock.operators.verbs import Limit
from penstock.settings import Settings
from penstock.task import SubtaskPlan, run_subtask
from penstock.task.runner import SubtaskReport
from runner_parts import SCHEMA, Control, Environment, all_values, batch, plan


@dataclass
class Unwanted(Control):
    """The word comes when the looks are used up."""

    def check_cancelled(self) -> None:
        """Not wanted any more, or nothing."""
        self.looks -= 1
        if self.looks < 0:
            raise NotWantedError("all who read it have ended")


def reported(what: SubtaskPlan, environment: Environment, control: Control | None = None) -> SubtaskReport:
    """Run it; what it reports."""
    return run_subtask(what, lambda _: environment, control or Control(), None, Settings())  # type: ignore[arg-type, return-value]


def counting(closed: list[bool]) -> MapInArrow:
    """A function without an end, which says that it was closed."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for number in itertools.count():
                yield batch(number)
        finally:
            closed.append(True)

    return MapInArrow(stage, SCHEMA)


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads all and gives nothing."""
    for _ in batches:
        yield from ()


@pytest.mark.parametrize("behind", [(), (MapInArrow(nothing, SCHEMA),)], ids=["rows are written", "none is written"])
def test_an_endless_function_is_closed_and_the_task_ends_well(behind: tuple[MapInArrow, ...]) -> None:
    """Between two batches, written or not: outputs are failed, and the report has figures, but nothing to compare."""
    closed: list[bool] = []
    environment = Environment({0: [batch(1)]})
    report = reported(plan((counting(closed), *behind)), environment, Unwanted(looks=40))
    assert closed == [True]
    assert (report.is_cut, report.sizes, report.fingerprints, report.left) == (True, {}, {}, (0,))
    assert [writer.life for writer in environment.writers] == [["setup", "fail", "close"]] * 2
    assert isinstance(environment.writers[0].cause, NotWantedError)
    assert environment.gates[0].life == ["setup", "close"]
    assert report.metrics["rows_out"] in (range(1) if behind else range(1, 41))


def test_who_reads_all_leaves_nothing() -> None:
    """Its report is that of a task as ever."""
    environment = Environment({0: [batch(1)], 1: [batch(2)]})
    report = reported(plan(inputs=2), environment)
    assert (report.is_cut, report.left) == (False, ())
    assert report.fingerprints


def test_who_has_enough_says_what_it_leaves() -> None:
    """A limit that is satisfied; its outputs are finished as ever."""
    environment = Environment({0: [batch(1, 2), batch(3), batch(4)]})
    report = reported(plan((Limit(3),)), environment)
    assert (report.is_cut, report.left) == (False, (0,))
    assert all_values(environment.writers[0]) == [1, 2, 3]


def joining(how: str) -> SubtaskPlan:
    """A vertex that joins two edges, the second of which is collected."""
    side = Side(SCHEMA, ("a",))
    combine = EquiJoin(side, side, how, join_schema(side, side, how))
    one = plan(inputs=2)
    edges = tuple(replace(edge, side=edge.id) if edge.id < 2 else edge for edge in one.graph.edges)
    vertex = replace(one.vertex, combine=combine)
    return replace(one, vertex=vertex, graph=replace(one.graph, vertices=(vertex,), edges=edges))


class Endless(list[object]):
    """A script that never ends."""

    def pop(self, _: object = 0) -> pa.RecordBatch:
        """One more."""
        return batch(1)

    def __bool__(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("how", "empty"),
    [("inner", 0), ("inner", 1), ("left_semi", 0), ("left_semi", 1), ("left", 0), ("left_anti", 0), ("right", 1)],
)
def test_an_empty_side_ends_a_join_over_an_endless_one(how: str, empty: int) -> None:
    """The side that is collected is left where the other one has no rows, and the other way round."""
    environment = Environment({empty: [TimeoutError(), batch()], 1 - empty: Endless()})
    report = reported(joining(how), environment)
    assert all_values(environment.writers[0]) == []
    assert environment.writers[0].life == ["setup", "finish", "close"]
    assert (report.is_cut, report.left) == (False, (1 - empty,))


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "left_semi", "left_anti"])
def test_the_batch_that_was_looked_at_counts(how: str) -> None:
    """A first batch that comes while the other side is read, after one without rows, is joined with the rest."""
    environment = Environment({0: [batch(), batch(1), batch(2), batch(3)], 1: [batch(2), batch(4), batch(3)]})
    reported(joining(how), environment)
    expected: dict[str, Sequence[int]] = {
        "inner": (2, 3), "left": (1, 2, 3), "right": (2, 3, 4), "full": (1, 2, 3, 4), "left_semi": (2, 3),
        "left_anti": (1,),
    }  # fmt: skip
    assert all_values(environment.writers[0]) == list(expected[how])


def test_a_side_that_the_result_can_do_without_is_not_looked_at() -> None:
    """A left join over an empty right side has all rows of the left; a full one reads both."""
    for how in ("left", "full", "left_anti"):
        environment = Environment({0: [batch(1), batch(2)], 1: []})
        assert reported(joining(how), environment).left == ()
        assert all_values(environment.writers[0]) == [1, 2]
