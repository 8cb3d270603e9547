# SPDX-License-Identifier: Apache-2.0
"""The end of a turn: in which order, once each, and what a fault of one costs the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from penstock.environment.turn import Turn


@dataclass(eq=False)
class Member:
    """One who notes his turns in a common list, and may have something wrong with him."""

    name: str
    notes: list[str]
    during: Callable[[], None] = field(default=lambda: None)
    after: Callable[[], None] = field(default=lambda: None)

    def take_turn(self) -> None:
        """Note it."""
        self.notes.append(self.name)
        self.during()

    def give_up(self, error: Exception) -> None:
        """Note it."""
        self.notes.append(f"{self.name} given up: {error}")
        self.after()


def broken() -> None:
    """Raise something that nobody expects."""
    raise KeyError("broken")


def turns(turn: Turn, queue: list[Callable[[], None]], limit: int = 10) -> int:
    """Run what is scheduled, until there is nothing; how many ends of a turn that were."""
    count = 0
    while queue:
        queue.pop(0)()
        count += 1
        assert count < limit
    return count


def test_each_is_looked_at_once_a_turn_gates_first() -> None:
    """However often they are marked; memory is taken back between the two kinds."""
    notes: list[str] = []
    queue: list[Callable[[], None]] = []
    turn = Turn(queue.append)
    turn.relieve = lambda: notes.append("memory")
    line, gate = Member("line", notes), Member("gate", notes)
    for _ in range(3):
        turn.flush(line)
        turn.pump(gate)
    assert turns(turn, queue) == 1
    assert notes == ["gate", "memory", "line"]


def test_what_a_gate_hands_over_is_sent_in_the_same_turn() -> None:
    """And a gate that is marked by another waits for the next."""
    notes: list[str] = []
    queue: list[Callable[[], None]] = []
    turn = Turn(queue.append)
    line, second = Member("line", notes), Member("second", notes)

    def hand_over() -> None:
        turn.flush(line)
        turn.pump(second)

    turn.pump(Member("first", notes, hand_over))
    assert turns(turn, queue) == 2
    assert notes == ["first", "line", "second"]


@pytest.mark.parametrize("broken_gate", [0, 1, 2])
@pytest.mark.parametrize("ends_badly", [False, True])
def test_a_fault_in_one_of_three_gates_ends_that_one_alone(broken_gate: int, ends_badly: bool) -> None:
    """The two others have their turn, all lines are flushed, and so is the next turn; even if its end raises too."""
    notes: list[str] = []
    queue: list[Callable[[], None]] = []
    turn = Turn(queue.append)
    gates = [Member(f"gate {number}", notes) for number in range(3)]
    lines = [Member(f"line {number}", notes) for number in range(3)]
    gates[broken_gate].during = broken
    gates[broken_gate].after = broken if ends_badly else gates[broken_gate].after
    for gate, line in zip(gates, lines, strict=True):
        turn.pump(gate)
        turn.flush(line)
    turns(turn, queue)
    assert [note for note in notes if "given up" in note] == [f"gate {broken_gate} given up: 'broken'"]
    assert [note for note in notes if "given up" not in note] == [
        f"{kind} {n}" for kind in ("gate", "line") for n in range(3)
    ]
    notes.clear()
    turn.flush(lines[0])
    turns(turn, queue)
    assert notes == ["line 0"]


def test_a_fault_while_memory_is_taken_back_costs_no_line_its_flush() -> None:
    """It is logged."""
    notes: list[str] = []
    queue: list[Callable[[], None]] = []
    turn = Turn(queue.append)
    turn.relieve = broken
    turn.flush(Member("line", notes))
    turns(turn, queue)
    assert notes == ["line"]
