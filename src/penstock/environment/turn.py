# SPDX-License-Identifier: Apache-2.0
"""The end of a turn of the event loop: who is to be looked at when all that has arrived is handled.

Rules: gates hand over, then memory is taken back for who waits, then tasks are sent to, so a task gets one message a
turn however much happened. A member that marks itself while its kind is looked at waits for the next turn. A member
whose turn raises is ended, with what it belongs to; the others keep their turns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

log = logging.getLogger("penstock.environment")


class Member(Protocol):
    """One who is looked at, at the end of a turn in which he was marked."""

    def take_turn(self) -> None:
        """Do what is due."""

    def give_up(self, error: Exception) -> None:
        """Its turn has raised this: end the session that it belongs to, and nothing else."""


class Turn:
    """The end of the turn. `schedule` runs something after all that is waiting already, as a loop's `call_soon`."""

    def __init__(self, schedule: Callable[[Callable[[], None]], object]) -> None:
        self.relieve: Callable[[], None] = _nothing
        """The step between the gates and the tasks."""
        self._schedule = schedule
        self._gates: dict[Member, None] = {}
        self._lines: dict[Member, None] = {}
        self._is_due = False

    def pump(self, gate: Member) -> None:
        """The gate may have something to hand over."""
        self._gates[gate] = None
        self.wake()

    def flush(self, line: Member) -> None:
        """There is something to be sent to this task."""
        self._lines[line] = None
        self.wake()

    def wake(self) -> None:
        """There is to be an end of this turn."""
        if not self._is_due:
            self._is_due = True
            self._schedule(self._end)

    def _end(self) -> None:
        self._is_due = False
        gates, self._gates = self._gates, {}
        _take_turns(gates)
        try:
            self.relieve()
        except Exception:
            log.exception("memory could not be taken back")
        lines, self._lines = self._lines, {}
        _take_turns(lines)


def _take_turns(members: Iterable[Member]) -> None:
    for member in members:
        try:
            member.take_turn()
        except Exception as error:
            log.exception("a turn failed: its session ends")
            isolate(member.give_up, error)


def isolate(give_up: Callable[[Exception], None], error: Exception) -> None:
    """Give something up for this error; what that raises in turn is logged and harms no other member."""
    try:
        give_up(error)
    except Exception:
        log.exception("what is given up could not be ended cleanly")


def _nothing() -> None:
    pass
