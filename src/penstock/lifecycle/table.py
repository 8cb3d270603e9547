# SPDX-License-Identifier: Apache-2.0
"""A lifecycle: one table `(state, event) -> state`, and an object that moves through it.

Rules:

- States and events are enums; their values are what people read. All legal steps are in the table. A pair that is
  not there is illegal: it raises with the object's last events, and the state stays as it is.
- A state is an *end* when no step leads out of it. The table says whether an end still hears events (and stays) or
  refuses them.
- `as_markdown` prints a table for the documentation; tests compare the pages with it.

Cost: a step is a look-up and a short tuple, taken when a state changes; who only asks reads `state`. Not for what
happens with every buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from penstock.errors import IllegalTransitionError

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)

Table = Mapping[tuple[S, E], S]

HISTORY = 12
"""Events that an illegal one is reported with."""


class Lifecycle(Generic[S, E]):
    """The state of one object, and its last events."""

    __slots__ = ("_table", "history", "name", "state")

    def __init__(self, name: str, table: Table[S, E], state: S) -> None:
        self.name = name
        self._table = table
        self.state = state
        self.history: tuple[E, ...] = ()
        """The last events, oldest first; repetitions count once."""

    def allows(self, event: E) -> bool:
        """Tell whether the event is legal now."""
        return (self.state, event) in self._table

    def move(self, event: E) -> S:
        """The state after this event; IllegalTransitionError, and no change, where the table has no such step."""
        after = self._table.get((self.state, event))
        if after is None:
            story = ", ".join(str(past.value) for past in self.history) or "none"
            raise IllegalTransitionError(
                f"{self.name}: {event.value!r} in state {self.state.value} is not possible; events so far: {story}"
            )
        if not self.history or self.history[-1] is not event:
            self.history = (*self.history[1 - HISTORY :], event)
        self.state = after
        return after

    def __str__(self) -> str:
        return f"{self.name} {self.state.value} ({', '.join(str(past.value) for past in self.history)})"


def ends_of(table: Table[S, E]) -> frozenset[S]:
    """The states that no step leads out of."""
    left = {state for (state, _), after in table.items() if after is not state}
    return frozenset(table.values()) - left


def as_markdown(table: Table[S, E]) -> str:
    """The table with a row for each state and a column for each event; a dash is illegal."""
    ends = ends_of(table)
    some_state, some_event = next(iter(table))
    events = list(type(some_event))
    lines = [
        "| state | " + " | ".join(f"`{event.value}`" for event in events) + " |",
        "|---" * (len(events) + 1) + "|",
    ]
    for state in type(some_state):
        cells = [str(after.value) if (after := table.get((state, event))) else "-" for event in events]
        lines.append(f"| {state.value}{' (end)' if state in ends else ''} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
