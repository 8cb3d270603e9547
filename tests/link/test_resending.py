# SPDX-License-Identifier: Apache-2.0
"""Driver and environment over connections that break, are doubled and overtake each other: the rules without I/O.

A model of both shells with the real cores: streams of commands, questions, and heartbeats. A schedule by hypothesis
says what comes through when, and what is lost with a connection. Each side may think that another connection counts.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StaleError
from penstock.link.outbox import Inbox, Outbox
from penstock.link.questions import Answers, Asked, Questions

STEPS = ("command", "question", "work", "work", "stream", "stream", "beat", "again", "cut", *["deliver"] * 7)
COUNT = 250
KINDS = ("beat", "ask", "answer", "reply", "instruction")


@dataclass
class World:
    """Both sides, and what is under way between them: in any order, for a connection that broke may be read late."""

    chance: random.Random
    commands: Outbox[int] = field(default_factory=Outbox)
    taken: Inbox = field(default_factory=Inbox)
    questions: Questions = field(default_factory=Questions)
    answers: Answers[list[str]] = field(default_factory=Answers)
    obeyed: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    answered: dict[int, str] = field(default_factory=dict)
    beats: list[tuple[int, Asked]] = field(default_factory=list)
    asking: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    replies: list[tuple[int, str]] = field(default_factory=list)
    streams: list[deque[tuple[int, int]]] = field(default_factory=lambda: [deque()])
    cursor: int = 0
    put: int = 0

    def command(self) -> None:
        """The driver has something to say."""
        self.commands.put(self.put)
        self.put += 1

    def question(self) -> None:
        """A task asks."""
        self.asking.append(self.questions.ask())

    def work(self) -> None:
        """The driver finds an answer."""
        for number, answer in self.answers.kept.items():
            if not answer:
                answer.append(f"answer {number}")
                return

    def stream(self) -> None:
        """The next command goes into the stream that is open."""
        found = self.commands.after(self.cursor)
        if found is not None:
            self.cursor = found[0]
            self.streams[-1].append(found)

    def beat(self) -> None:
        """The environment says how far it is."""
        self.beats.append((self.taken.last, self.questions.asked))

    def deliver(self) -> None:
        """One thing that is under way comes through, whichever."""
        ready = [number for number in self.waiting if self.answers.kept.get(number)]
        for kind in self.chance.sample(KINDS, len(KINDS)):
            unread = [stream for stream in self.streams if stream]
            if kind == "instruction" and unread:
                number, command = self.chance.choice(unread).popleft()
                if self.taken.take(number):
                    self.obeyed.append(command)
                return
            if kind == "beat" and self.beats:
                taken, asked = self.beats.pop(self.chance.randrange(len(self.beats)))
                self.commands.taken(taken)
                self.answers.settle(asked)
                return
            if kind == "ask" and self.asking:
                number = self.asking.pop(self.chance.randrange(len(self.asking)))
                with contextlib.suppress(StaleError):
                    self.answers.get(number, lambda number=number: self._begin(number))  # type: ignore[misc]
                    self.waiting.append(number)
                return
            if kind == "answer" and ready:
                number = self.chance.choice(ready)
                self.waiting.remove(number)
                self.replies.append((number, self.answers.kept[number][0]))
                return
            if kind == "reply" and self.replies:
                number, answer = self.replies.pop(self.chance.randrange(len(self.replies)))
                assert self.answered.setdefault(number, answer) == answer
                self.questions.answered(number)
                return

    def cut(self) -> None:
        """Answers under way are lost; all else may be lost, or read late."""
        self.waiting.clear()
        self.replies.clear()
        self.streams = [stream for stream in self.streams if self.chance.random() < 0.5]
        self.beats = [beat for beat in self.beats if self.chance.random() < 0.5]
        self.asking = [number for number in self.asking if self.chance.random() < 0.5]
        self.again()

    def again(self) -> None:
        """A new connection, beside what the old ones still hold: listen after what was taken, ask what is open."""
        self.commands.taken(self.taken.last)
        self.cursor = self.taken.last
        self.streams.append(deque())
        self.asking += self.questions.asked.unanswered

    def _begin(self, number: int) -> list[str]:
        self.begun.append(number)
        return []


@settings(deadline=None)
@given(st.integers(0, 1 << 32))
def test_each_command_and_each_question_is_carried_out_once(seed: int) -> None:
    """Through any cuts: commands in order, questions in any, each answered; at the end nothing is kept."""
    world = World(random.Random(seed))
    for step in world.chance.choices(STEPS, k=COUNT):
        getattr(world, step)()
    asked = world.questions.asked.last
    world.again()
    while world.commands.after(world.taken.last) is not None or world.questions.asked.unanswered:
        for step in ("stream", "work", "deliver", "deliver", "deliver", "deliver"):
            getattr(world, step)()
    assert world.obeyed == list(range(world.put))
    assert sorted(world.begun) == list(range(1, asked + 1)), "none is lost, and none is carried out twice"
    assert world.answered == {number: f"answer {number}" for number in range(1, asked + 1)}
    world.beat()
    while world.beats or world.asking or any(world.streams):
        world.deliver()
    assert world.obeyed == list(range(world.put))
    assert sorted(world.begun) == list(range(1, asked + 1)), "what is read late is not carried out"
    assert (len(world.commands), world.answers.kept) == (0, {})


def test_a_question_that_comes_again_gets_the_answer_there_is() -> None:
    """Also while others are forgotten; one whose answer has come is refused, and not carried out."""
    questions, answers = Questions(), Answers[str]()
    first, second = questions.ask(), questions.ask()
    assert answers.get(first, lambda: "one") == "one"
    assert answers.get(second, lambda: "two") == "two"
    questions.answered(second)
    answers.settle(questions.asked)
    assert answers.get(first, lambda: "again") == "one"
    with pytest.raises(StaleError, match="question 2 was answered before"):
        answers.get(second, lambda: "again")


def test_a_heartbeat_that_was_overtaken_forgets_nothing_too_early() -> None:
    """It knows fewer numbers, or more of them without an answer."""
    answers = Answers[str]()
    answers.get(1, lambda: "one")
    answers.get(3, lambda: "three")
    answers.settle(Asked(3, (1, 3)))
    answers.settle(Asked(3, (3,)))
    answers.settle(Asked(3, (1, 3)))
    answers.settle(Asked(2, ()))
    assert answers.kept == {3: "three"}
    with pytest.raises(StaleError):
        answers.get(1, lambda: "again")
