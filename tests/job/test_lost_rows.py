# SPDX-License-Identifier: Apache-2.0
"""Rows sent are rows received and rows lost, whatever dies when: the tasks' counts and the account of the driver."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from effort import examples
from penstock.job.core.recovery.lost_rows import RowAccount
from penstock.shuffle import AttemptId, EpochEnd, Event
from penstock.shuffle.events import ProducerIs, Reattached
from penstock.stream.row_counts import CountedChannels, RowCounts

PRODUCERS, CONSUMERS = 2, 2
SUBTASKS = st.sampled_from((0, 1))


class Memory:
    """Numbers of which the last commit is what others see."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.values = memoryview(bytearray(8 * len(names))).cast("q")
        self.seen: dict[str, float] = {}

    def commit(self) -> None:
        """Show all values."""
        self.seen = dict(zip(self.names, map(float, self.values), strict=True))


Item = int | Event


@dataclass
class Task:
    """One attempt."""

    attempt: AttemptId
    channels: CountedChannels
    sent: list[int] = field(default_factory=lambda: [0] * CONSUMERS)
    queued: list[list[Item]] = field(default_factory=lambda: [[] for _ in range(CONSUMERS)])
    had_reader: list[bool] = field(default_factory=lambda: [False] * CONSUMERS)

    def __post_init__(self) -> None:
        self.memory = Memory(self.channels.names())
        self.counts = RowCounts(self.channels, self.memory, is_kept=True)


class Deaths(RuleBasedStateMachine):
    """Two producers and two consumers of each of them; each may die at any time, and comes again."""

    def __init__(self) -> None:
        super().__init__()
        self.account = RowAccount()
        self.numbers = 0
        self.producers: list[Task | None] = [None] * PRODUCERS
        self.consumers: list[Task | None] = [None] * CONSUMERS
        self.wires: dict[tuple[int, int], deque[Item]] = {
            (p, c): deque() for p in range(PRODUCERS) for c in range(CONSUMERS)
        }
        self.sent = self.handled = 0

    @initialize()
    def begin(self) -> None:
        """All run."""
        for subtask in range(PRODUCERS):
            self.start_producer(subtask)
            self.start_consumer(subtask)

    def _next(self, vertex: int, subtask: int) -> AttemptId:
        self.numbers += 1
        return AttemptId("j", vertex, subtask, self.numbers)

    @rule(p=SUBTASKS)
    def start_producer(self, p: int) -> None:
        """A producer comes, and its readers hear of it, behind what they have of the one before."""
        if self.producers[p] is not None:
            return
        self.producers[p] = Task(self._next(0, p), CountedChannels([], [(0, CONSUMERS)]))
        for c in range(CONSUMERS):
            if self.consumers[c] is not None:
                self._attach(p, c)

    @rule(c=SUBTASKS)
    def start_consumer(self, c: int) -> None:
        """A consumer comes, and begins to read those producers that are there."""
        if self.consumers[c] is not None:
            return
        incoming = [(0, p, c) for p in range(PRODUCERS)]
        consumer = self.consumers[c] = Task(self._next(1, c), CountedChannels(incoming, []))
        self.begun(c, consumer)
        for p in range(PRODUCERS):
            if self.producers[p] is not None:
                self._attach(p, c)

    @property
    def goes_on(self) -> bool:
        """The next attempt of a reader begins with no counts."""
        return False

    def begun(self, c: int, consumer: Task) -> None:
        """A consumer is there, and reads nothing yet."""

    def _attach(self, p: int, c: int) -> None:
        producer = self.producers[p]
        assert producer is not None
        wire = self.wires[p, c]
        wire.append(ProducerIs(producer.attempt.attempt))
        if producer.had_reader[c]:
            wire.append(Reattached())
        wire.extend(producer.queued[c])
        producer.queued[c].clear()
        producer.had_reader[c] = True

    @rule(p=SUBTASKS, c=SUBTASKS, rows=st.integers(1, 5))
    def send(self, p: int, c: int, rows: int) -> None:
        """A producer gives rows; nobody reads those to a consumer that is not there."""
        producer = self.producers[p]
        if producer is None:
            return
        producer.counts.given(0, c, rows)
        producer.counts.commit()
        producer.sent[c] += rows
        self.sent += rows
        self._put(producer, p, c, rows)

    def _put(self, producer: Task, p: int, c: int, item: Item) -> None:
        """Something for a reader: it waits for the first one, and is dropped where one has left."""
        if self.consumers[c] is not None:
            self.wires[p, c].append(item)
        elif not producer.had_reader[c]:
            producer.queued[c].append(item)

    @rule(p=SUBTASKS)
    def end_epoch(self, p: int) -> None:
        """A barrier goes to all readers, with the sums."""
        producer = self.producers[p]
        if producer is None:
            return
        for c in range(CONSUMERS):
            self._put(producer, p, c, EpochEnd(b"", producer.sent[c], 0, 0, 0))

    @rule(p=SUBTASKS, c=SUBTASKS, handled=st.booleans())
    def receive(self, p: int, c: int, *, handled: bool = True) -> None:
        """A consumer takes what is next; it may die before it has handled that."""
        consumer = self.consumers[c]
        if consumer is None or not self.wires[p, c]:
            return
        item = self.wires[p, c].popleft()
        if not isinstance(item, int):
            consumer.counts.event_came(p, item)
            if isinstance(item, ProducerIs):
                consumer.counts.producer_is(p, item.attempt)
            return
        consumer.counts.came(p, item)
        consumer.counts.taken(p, item)
        if not handled:
            self.kill_consumer(c)
            return
        consumer.counts.handled(item)
        consumer.counts.commit()
        self.handled += item

    @rule(p=SUBTASKS, kept=st.integers(0, 3))
    def kill_producer(self, p: int, kept: int) -> None:
        """A producer dies; of what is under way some has reached its readers, the rest is gone."""
        producer = self.producers[p]
        if producer is None:
            return
        self.producers[p] = None
        for c in range(CONSUMERS):
            wire = self.wires[p, c]
            # Its readers' own side tells them which producer's rows follow.
            lost = [item for item in list(wire)[kept:] if not isinstance(item, ProducerIs)]
            self.wires[p, c] = deque(item for item in wire if not any(item is each for each in lost))
        self.account.ended(producer.attempt, producer.memory.seen, None, reads=False)
        self.settle()

    @rule(c=SUBTASKS)
    def kill_consumer(self, c: int) -> None:
        """A consumer dies, and what had come to it with it."""
        consumer = self.consumers[c]
        if consumer is None:
            return
        self.consumers[c] = None
        for p in range(PRODUCERS):
            self.wires[p, c].clear()
        seen = consumer.memory.seen
        self.account.ended(consumer.attempt, seen, None, reads=True, reads_again=self.goes_on)

    @rule()
    def settle(self) -> None:
        """The tasks that run report; that the account is asked in between changes nothing."""
        live = {task.attempt: task.memory.seen for task in (*self.producers, *self.consumers) if task is not None}
        found = self.account.lost(live)
        self.open = found.open
        self.lost = found.lost.get(0, 0)

    @invariant()
    def no_more_is_lost_than_was_sent(self) -> None:
        """The account never says more than there is, however little it knows."""
        self.settle()
        assert 0 <= self.lost <= self.sent - self.handled

    def teardown(self) -> None:
        """All come again and read what is there; then each row is received or lost."""
        for _ in range(2):
            for subtask in range(PRODUCERS):
                self.start_producer(subtask)
                self.start_consumer(subtask)
                self.end_epoch(subtask)
            for (p, c), wire in self.wires.items():
                while wire:
                    self.receive(p, c, handled=True)
        self.settle()
        assert self.open == 0
        assert self.sent == self.handled + self.lost


class DeathsWithLogs(Deaths):
    """The consumers go on behind their last snapshots: rows since then come again, out of logs."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[bytes | None] = [None] * CONSUMERS
        self.since = [0] * CONSUMERS
        """Rows that each consumer has handled since its snapshot."""

    @property
    def goes_on(self) -> bool:
        """The next attempt of a reader goes on with its counts."""
        return True

    @rule(c=SUBTASKS)
    def take_snapshot(self, c: int) -> None:
        """A consumer takes a snapshot, and its next attempt begins with that."""
        consumer = self.consumers[c]
        if consumer is not None:
            self.snapshots[c], self.since[c] = consumer.counts.snapshot(), 0

    def begun(self, c: int, consumer: Task) -> None:
        """A consumer goes on with the counts of its snapshot."""
        if (snapshot := self.snapshots[c]) is not None:
            consumer.counts.restore(snapshot)

    def _attach(self, p: int, c: int) -> None:
        producer, consumer = self.producers[p], self.consumers[c]
        assert producer is not None
        assert consumer is not None
        attempt, position = consumer.counts.positions()[p]
        left = producer.sent[c] - (position if attempt == producer.attempt.attempt else 0)
        self.wires[p, c].append(ProducerIs(producer.attempt.attempt))
        if left:
            self.wires[p, c].append(left)
        producer.queued[c].clear()
        producer.had_reader[c] = True

    @rule(p=SUBTASKS, c=SUBTASKS, handled=st.booleans())
    def receive(self, p: int, c: int, *, handled: bool = True) -> None:
        """As ever; what is handled may have to be handled again."""
        before = self.handled
        super().receive(p, c, handled=handled)
        self.since[c] += max(0, self.handled - before)

    @rule(c=SUBTASKS)
    def kill_consumer(self, c: int) -> None:
        """A consumer dies, and what it has handled since its snapshot is to be handled again."""
        if self.consumers[c] is not None:
            self.handled -= self.since[c]
            self.since[c] = 0
        super().kill_consumer(c)


Deaths.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestDeaths = Deaths.TestCase
DeathsWithLogs.TestCase.settings = Deaths.TestCase.settings
TestDeathsWithLogs = DeathsWithLogs.TestCase
