# SPDX-License-Identifier: Apache-2.0
"""The tools for deterministic tests do what they say, also when the test they serve is wrong."""

from __future__ import annotations

import pytest

from penstock.testing import Running, Sequencer, VirtualClock, wait_until


def test_wait_until_names_what_did_not_come() -> None:
    """A condition that never holds is an AssertionError with its description."""
    wait_until(lambda: True, "nothing")
    with pytest.raises(AssertionError, match="the moon"):
        wait_until(lambda: False, "the moon", deadline=0.01)


def test_running_hands_back_result_and_error() -> None:
    """`join` gives the result or raises; `outcome` gives the error."""
    assert Running(lambda: 7).join() == 7
    failing = Running(lambda: 1 // 0)
    assert isinstance(failing.outcome(), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        failing.join()


def test_running_does_not_wait_for_ever() -> None:
    """A thread that is stuck is an AssertionError at the deadline, and can be let go."""
    turn = Sequencer()

    def stuck() -> None:
        with turn(1):
            pass

    task = Running(stuck)
    with pytest.raises(AssertionError, match="did not end"):
        task.join(0.01)
    assert task.is_alive
    with turn(0):
        pass
    task.join()


def test_sequencer_forces_the_order() -> None:
    """Blocks run by number, whichever thread comes first."""
    turn = Sequencer()
    order: list[int] = []

    def take(number: int) -> None:
        with turn(number):
            order.append(number)

    tasks = [Running(lambda n=n: take(n)) for n in (2, 1, 3)]  # type: ignore[misc]
    with turn(0):
        order.append(0)
    for task in tasks:
        task.join()
    assert order == [0, 1, 2, 3]


def test_sequencer_stops_behind_a_failed_block() -> None:
    """A block that raises does not leave the others waiting."""
    turn = Sequencer()

    def wait() -> None:
        with turn(1):
            pass

    task = Running(wait)
    with pytest.raises(ValueError, match="broken"), turn(0):
        raise ValueError("broken")
    assert isinstance(task.outcome(), AssertionError)


def test_virtual_clock_runs_timers_in_order() -> None:
    """Timers run at their own time, those they set included, and never early."""
    clock = VirtualClock(10.0)
    seen: list[tuple[str, float]] = []
    clock.call_at(12.0, lambda: seen.append(("second", clock())))
    clock.call_at(
        11.0, lambda: (seen.append(("first", clock())), clock.call_at(11.5, lambda: seen.append(("new", clock()))))
    )
    clock.advance(0.5)
    assert seen == []
    clock.advance(2.0)
    assert seen == [("first", 11.0), ("new", 11.5), ("second", 12.0)]
    assert clock() == 12.5
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
