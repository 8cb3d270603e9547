# SPDX-License-Identifier: Apache-2.0
"""Vertices with several inputs: sides are read apart, in whatever order is asked, and confirmed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from penstock.errors import PartitionLostError
from penstock.task import SubtaskPlan
from runner_parts import Control, Environment, all_values, batch, plan, run


@dataclass(frozen=True)
class InOrder:
    """Reads the sides one after the other, in this order; `most` batches of each."""

    order: tuple[int, ...]
    most: int = 1 << 30

    @property
    def name(self) -> str:
        """The name that messages show."""
        return "in order"

    def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Side after side."""
        for side in self.order:
            for _, rows in zip(range(self.most), inputs[side], strict=False):
                yield rows


def two_sided(combine: InOrder, sides: tuple[int, ...] = (0, 1), confirm: bool = False) -> SubtaskPlan:
    """A vertex with an edge for each entry, on that side."""
    one = plan(inputs=len(sides), confirm=confirm)
    edges = tuple(replace(edge, side=sides[edge.id]) if edge.id < len(sides) else edge for edge in one.graph.edges)
    vertex = replace(one.vertex, combine=combine)
    return replace(one, vertex=vertex, graph=replace(one.graph, vertices=(vertex,), edges=edges))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_sides_are_read_in_the_order_the_operator_asks(order: tuple[int, ...]) -> None:
    """Whichever side is read first gives its rows first, and the edges of one side are one input."""
    environment = Environment({0: [batch(1)], 1: [batch(10), batch(11)], 2: [batch(2)]})
    figures = run(two_sided(InOrder(order), (0, 1, 0)), environment)
    written = [value for _, values in environment.writers[1].written for value in values]
    assert written == ([1, 2, 10, 11] if order == (0, 1) else [10, 11, 1, 2])
    assert figures["rows_in"] == 4


def test_producers_are_confirmed_at_the_end_of_the_last_side() -> None:
    """Asked at the end of the first side, the answer would wait for producers that wait for this task."""
    control = Control()
    environment = Environment({0: [batch(1)], 1: [batch(2)]})
    stages: list[int] = []

    class Looking(InOrder):
        def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
            list(inputs[1])
            stages.append(control.awaited)
            yield from inputs[0]
            stages.append(control.awaited)

    run(two_sided(Looking((0, 1)), confirm=True), environment, control)
    assert stages == [0, 1]


def test_a_side_may_be_left_unread() -> None:
    """The gates are closed, the outputs finished, and nothing is awaited."""
    control = Control()
    environment = Environment({0: [batch(1), batch(2)], 1: [batch(3)]})
    run(two_sided(InOrder((0,), most=1), confirm=True), environment, control)
    assert all_values(environment.writers[1]) == [1]
    assert [gate.life for gate in environment.gates] == [["setup", "close"]] * 2
    assert control.awaited == 0


def test_a_combination_is_blamed_by_its_name_but_not_for_its_inputs() -> None:
    """An error that it raises gets a note; one that a gate raises passes through."""

    class Failing(InOrder):
        def apply(self, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
            yield next(inputs[0])
            raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        run(two_sided(Failing((0, 1))), Environment({0: [batch(1)], 1: []}))
    assert caught.value.__notes__ == ["raised in in order of middle (stage 99, subtask 0)"]
    with pytest.raises(PartitionLostError) as lost:
        run(two_sided(InOrder((1, 0))), Environment({0: [batch(1)], 1: [PartitionLostError("gone")]}))
    assert not getattr(lost.value, "__notes__", [])
