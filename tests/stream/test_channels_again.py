# SPDX-License-Identifier: Apache-2.0
"""Channels whose rows are read again out of logs: each row once and in order, whatever comes when, and bounded."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from effort import examples
from penstock.shuffle.events import EpochEnd, Event, ProducerIs, Reattached
from penstock.stream.channels_again import ChannelsAgain, LoggedRange

MOST = 40
CHANNELS = 2
NUMBERS = st.integers(0, CHANNELS - 1)


class Producer:
    """One attempt: the rows that it has given, and how many of them are in ended files of its log."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.given = 0
        self.ended = 0


class Reading(RuleBasedStateMachine):
    """A reader that begins anew behind rows of two producers, of which each may die and come again."""

    @initialize(given=st.lists(st.integers(0, 30), min_size=CHANNELS, max_size=CHANNELS), data=st.data())
    def begin(self, given: list[int], data: st.DataObject) -> None:
        """The reader has gone on behind a part of what the producers have given, and comes in their middle."""
        self.producers = [Producer(7 + number) for number in range(CHANNELS)]
        self.expected: list[deque[tuple[int, int]]] = [deque() for _ in range(CHANNELS)]
        positions = []
        for number, producer in enumerate(self.producers):
            producer.given = given[number]
            position = data.draw(st.integers(0, given[number]))
            positions.append((producer.attempt, position))
        self.core: ChannelsAgain[list[tuple[int, int]]] = ChannelsAgain(positions, MOST)
        self.next = [position for _, position in positions]
        """The number of the next row of the channel's producer that is to be handled."""
        self.attempts = [attempt for attempt, _ in positions]
        self.read: dict[LoggedRange, int] = {}
        self.barriers = [0] * CHANNELS
        self.handled_barriers = [0] * CHANNELS
        for number, producer in enumerate(self.producers):
            self.core.event_came(number, ProducerIs(producer.attempt))
            self.core.event_came(number, Reattached())

    @rule(number=NUMBERS, count=st.integers(1, 12))
    def give(self, number: int, count: int) -> None:
        """A producer gives rows, and they come to the reader."""
        producer = self.producers[number]
        rows = [(producer.attempt, producer.given + each) for each in range(count)]
        producer.given += count
        self.core.rows_came(number, rows, count, count)

    @rule(number=NUMBERS)
    def end_epoch(self, number: int) -> None:
        """A producer ends its file and sends a barrier."""
        producer = self.producers[number]
        producer.ended = producer.given
        self.barriers[number] += 1
        self.core.event_came(number, EpochEnd(b"", producer.given, 0, 0, 0))

    @rule(number=NUMBERS)
    def die(self, number: int) -> None:
        """Another attempt of a producer follows, and begins with its first row."""
        producer = self.producers[number] = Producer(self.producers[number].attempt + 10)
        self.core.event_came(number, ProducerIs(producer.attempt))

    @rule(most=st.integers(1, 5))
    def take(self, most: int) -> None:
        """The reader handles what is next, and reads logs in pieces of a few rows."""
        found = self.core.take(lambda wanted: self.piece(wanted, most))
        if found is not None:
            number, item = found
            if isinstance(item, list):
                self.handle(number, item)
            else:
                self.hear(number, item)
        for wanted in [each for each in self.read if self.read[each] == each.last]:
            del self.read[wanted]
            self.core.range_ended(wanted)

    def piece(self, wanted: LoggedRange, most: int) -> list[tuple[int, int]] | None:
        """Rows of a range; a range is never asked for of which the log has less."""
        assert wanted.last is not None
        producer = self.producers[wanted.channel]
        assert wanted.attempt != producer.attempt or wanted.last <= producer.ended
        at = self.read.setdefault(wanted, wanted.first)
        count = min(most, wanted.last - at)
        self.read[wanted] += count
        return [(wanted.attempt, at + each) for each in range(count)] if count else None

    def handle(self, number: int, rows: list[tuple[int, int]]) -> None:
        """Each row is the next one of its producer."""
        for attempt, row in rows:
            assert attempt == self.attempts[number], "rows of one producer among those of another"
            assert row == self.next[number], "a row is missing, or came twice"
            self.next[number] += 1

    def hear(self, number: int, event: Event) -> None:
        """Events keep their place among the rows; none is lost."""
        if isinstance(event, ProducerIs):
            if event.attempt != self.attempts[number]:
                self.attempts[number], self.next[number] = event.attempt, 0
        elif isinstance(event, EpochEnd):
            self.handled_barriers[number] += 1
            assert self.next[number] >= event.rows, "a barrier came ahead of its rows"

    @precondition(lambda self: hasattr(self, "core"))
    @invariant()
    def is_bounded(self) -> None:
        """No more waits than one step above the bound while rows of a log stand in front of it."""
        self.core.check()
        assert not self.core.is_waiting or self.core.waiting <= MOST + 12

    def teardown(self) -> None:
        """After one more barrier of each all was handled, up to the producers' last rows."""
        if not hasattr(self, "core"):
            return
        for number in range(CHANNELS):
            self.end_epoch(number)
        for _ in range(5000):
            if self.core.is_over:
                break
            self.take(5)
        assert self.core.is_over
        assert self.next == [producer.given for producer in self.producers]
        assert self.handled_barriers == self.barriers


Reading.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestReading = Reading.TestCase
