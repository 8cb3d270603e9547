# SPDX-License-Identifier: Apache-2.0
"""Turns of users at one process: who asks much waits for himself, and others for one question of his."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.connection.turns import PASS_SECONDS, Turns


class Loop:
    """An event loop whose time is told, and in which each question takes so long."""

    def __init__(self, cost: float) -> None:
        self.time = 0.0
        self.passes = 0
        self.answered: list[str] = []
        self._cost = cost
        self._next: list[Callable[[], None]] = []
        self.turns = Turns(self._next.append, lambda: self.time)

    def come(self, user: str, times: int = 1) -> bool:
        """Have questions come; True if the last one was answered at once."""
        return [self.turns.take(user, lambda: self._answer(user)) for _ in range(times)][-1]

    def run(self, passes: int = 1) -> None:
        """Have so many passes."""
        for _ in range(passes):
            calls, self._next[:] = list(self._next), []
            for call in calls:
                call()

    def _answer(self, user: str) -> None:
        self.time += self._cost
        self.answered.append(user)


def test_few_questions_are_answered_at_once() -> None:
    """As long as they are done in a pass of the loop, nobody waits, and the order is that of their coming."""
    loop = Loop(PASS_SECONDS / 1000)
    for _ in range(50):
        assert loop.come("a", 20)
        assert loop.come("b", 20)
        loop.run()
    assert loop.answered == (["a"] * 20 + ["b"] * 20) * 50


def test_one_that_raises_keeps_nobody_else_waiting() -> None:
    """The others have their turns in the passes that follow, though nobody asks anything more."""
    loop = Loop(PASS_SECONDS * 5)
    loop.come("a", 300)

    def fault() -> None:
        raise ZeroDivisionError

    assert not loop.turns.take("b", fault)
    assert not loop.come("c")
    with pytest.raises(ZeroDivisionError):
        loop.run(400)
    loop.run(400)
    assert "c" in loop.answered
    assert loop.answered.count("a") == 300


def test_a_user_waits_for_one_question_of_each_other_one() -> None:
    """However many another has asked, over whatever connections: the loop is held for a question, or a pass."""
    for cost in (PASS_SECONDS * 5, PASS_SECONDS / 100):
        loop = Loop(cost)
        loop.come("enemy", 10_000)
        assert loop.time <= PASS_SECONDS + cost + 1e-9, "all come in one pass, before anybody knows what one costs"
        for _ in range(20):
            loop.run()
            began = loop.time
            assert not loop.come("b")
            del loop.answered[:]
            loop.run(2)
            assert "b" in loop.answered
            assert loop.time - began <= 2 * (PASS_SECONDS + cost) + 1e-9
        loop.run(10_000)
        assert loop.come("enemy"), "nobody waits any more"
