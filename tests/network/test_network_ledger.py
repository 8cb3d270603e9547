# SPDX-License-Identifier: Apache-2.0
"""The credit ledgers: single steps, then several channels and one pool under random interleavings."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from effort import examples
from network_parts import Pool
from penstock.errors import ProtocolError
from penstock.network.frames import MAX_CREDIT
from penstock.network.ledger import ReceiverCredit, SenderCredit


def test_sender_never_goes_negative() -> None:
    """Spending without credit is refused, and what was granted is what is left plus what was spent."""
    credit = SenderCredit(1)
    credit.spend()
    credit.grant(2)
    credit.spend()
    assert (credit.credit, credit.spent, credit.granted) == (1, 2, 3)
    credit.reset()
    assert (credit.credit, credit.spent, credit.granted) == (0, 2, 2)
    with pytest.raises(AssertionError, match="credit -1"):
        credit.spend()


def test_sender_refuses_absurd_grants() -> None:
    """A peer that grants more than the limit, at once or in steps, breaks the protocol."""
    credit = SenderCredit(2)
    credit.grant(MAX_CREDIT - 2)
    with pytest.raises(ProtocolError, match="at most"):
        credit.grant(1)


def test_backlog_asks_for_floating_buffers_and_announces_once() -> None:
    """Backlog 3 with 2 exclusive buffers takes 3 floating ones; only the change from zero asks for a frame."""
    asked = []
    credit = ReceiverCredit([10, 11], Pool(range(5)))
    credit.on_unannounced = lambda: asked.append(credit.unannounced)
    assert credit.initial == 2
    credit.require(3)
    assert (credit.free, credit.unannounced, asked) == (5, 3, [1])
    assert credit.drain() == 3
    assert credit.drain() == 0
    credit.require(4)
    assert asked == [1, 1]


def test_floating_buffers_are_used_first_and_surplus_goes_back_on_recycle() -> None:
    """With the backlog gone, a recycled exclusive buffer returns a floating one and raises no credit."""
    pool = Pool([0, 1])
    credit = ReceiverCredit([10, 11], pool)
    credit.require(2)
    credit.drain()
    taken = [credit.take(), credit.take(), credit.take()]
    assert set(taken[:2]) == {0, 1}
    assert taken[2] in (10, 11)
    credit.require(2)
    credit.recycle(0)
    credit.recycle(1)
    assert (credit.free, credit.drain(), pool.free) == (3, 2, [])
    credit.require(0)
    credit.recycle(taken[2])
    assert (credit.free, credit.drain(), len(pool.free)) == (3, 0, 1)


def test_listener_takes_what_is_needed_and_refuses_the_rest() -> None:
    """A channel that waits is offered floating buffers as others return them, until it has enough."""
    pool = Pool([0])
    busy, waiting = ReceiverCredit([], pool), ReceiverCredit([20], pool)
    busy.require(1)
    busy.drain()
    segment = busy.take()
    waiting.require(1)
    waiting.require(1)
    assert len(pool.listeners) == 1
    busy.recycle(segment)
    assert (waiting.free, waiting.unannounced) == (2, 1)
    waiting.drain()
    waiting.take()
    waiting.require(0)
    busy.require(5)
    assert not pool.free
    assert len(pool.listeners) == 1


def test_a_wait_that_is_no_longer_needed_lets_the_next_channel_have_the_buffer() -> None:
    """Required fell meanwhile: the listener refuses, and the next one in line gets the segment."""
    pool = Pool([0])
    holder, first, second = (ReceiverCredit([], pool) for _ in range(3))
    holder.require(1)
    holder.drain()
    segment = holder.take()
    first.require(1)
    second.require(1)
    first.withdraw()
    holder.recycle(segment)
    assert (first.free, second.free) == (0, 1)


def test_recycling_twice_or_a_strange_segment_is_refused() -> None:
    """Only a held segment can be recycled, once."""
    credit = ReceiverCredit([1, 2], Pool([]))
    segment = credit.take()
    credit.recycle(segment)
    for wrong in (segment, 77):
        with pytest.raises(ValueError, match="not held"):
            credit.recycle(wrong)


def test_data_without_credit_is_the_peer_s_fault() -> None:
    """More data than was announced raises ProtocolError, even where a free buffer is not announced yet."""
    credit = ReceiverCredit([1], Pool([0]))
    credit.require(1)
    credit.take()
    with pytest.raises(ProtocolError, match="without credit"):
        credit.take()


def test_release_returns_free_buffers_now_and_held_ones_later() -> None:
    """Every segment comes back to its own owner, once."""
    pool = Pool([0])
    credit = ReceiverCredit([10, 11], pool)
    credit.require(1)
    credit.drain()
    floating, exclusive = credit.take(), credit.take()
    credit.release()
    credit.release()
    assert pool.exclusive_back == [10]
    assert pool.free == []
    credit.recycle(exclusive)
    credit.recycle(floating)
    assert pool.exclusive_back == [10, 11]
    assert pool.free == [0]
    credit.require(5)
    assert credit.free == 0


def test_without_exclusive_buffers_a_blocked_channel_keeps_nothing() -> None:
    """Withdrawing gives floating buffers back and forgets announced credit; with exclusive ones it does nothing."""
    pool = Pool([0, 1])
    none, some = ReceiverCredit([], pool), ReceiverCredit([10], pool)
    none.require(2)
    assert none.drain() == 2
    none.withdraw()
    assert (none.free, none.announced, sorted(pool.free)) == (0, 0, [0, 1])
    some.withdraw()
    assert (some.free, some.announced) == (1, 1)


def test_a_pool_that_ends_leaves_waiting_channels_in_peace() -> None:
    """The listener called with None takes nothing and does not ask again."""
    pool = Pool([])
    credit = ReceiverCredit([1], pool)
    credit.require(3)
    listener = pool.listeners.popleft()
    assert listener(None) is False
    assert not pool.listeners
    assert credit.free == 1


CHANNELS = 3


class CreditMachine(RuleBasedStateMachine):
    """Three channels share four floating segments; frames travel both ways with delay."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(range(4))
        exclusive = [[10, 11], [12], []]
        self.receivers = [ReceiverCredit(own, self.pool) for own in exclusive]
        self.senders = [SenderCredit(len(own)) for own in exclusive]
        self.exclusive = {segment for own in exclusive for segment in own}
        self.backlogs = [0] * CHANNELS
        self.data_in_flight: list[list[int]] = [[] for _ in range(CHANNELS)]
        self.credit_in_flight: list[list[int]] = [[] for _ in range(CHANNELS)]
        self.held: list[list[int]] = [[] for _ in range(CHANNELS)]

    channels = st.integers(0, CHANNELS - 1)

    @rule(channel=channels, count=st.integers(1, 3))
    def produce(self, channel: int, count: int) -> None:
        """Data is written; without exclusive buffers the backlog is announced."""
        self.backlogs[channel] += count
        if self.senders[channel].credit == 0 and self.senders[channel].initial == 0:
            self.receivers[channel].require(self.backlogs[channel])

    @rule(channel=channels)
    def send(self, channel: int) -> None:
        """One buffer goes out, if there is one and credit for it."""
        if self.backlogs[channel] and self.senders[channel].credit:
            self.senders[channel].spend()
            self.backlogs[channel] -= 1
            self.data_in_flight[channel].append(self.backlogs[channel])

    @rule(channel=channels)
    def arrive(self, channel: int) -> None:
        """The oldest buffer in flight arrives with the backlog it was sent with."""
        if self.data_in_flight[channel]:
            backlog = self.data_in_flight[channel].pop(0)
            self.held[channel].append(self.receivers[channel].take())
            self.receivers[channel].require(backlog)

    @rule(channel=channels, which=st.integers(0, 9))
    def recycle(self, channel: int, which: int) -> None:
        """The consumer recycles any of its buffers."""
        held = self.held[channel]
        if held:
            self.receivers[channel].recycle(held.pop(which % len(held)))

    @rule(channel=channels)
    def announce(self, channel: int) -> None:
        """An ADD_CREDIT is written."""
        amount = self.receivers[channel].drain()
        if amount:
            self.credit_in_flight[channel].append(amount)

    @rule(channel=channels)
    def grant(self, channel: int) -> None:
        """An ADD_CREDIT arrives."""
        if self.credit_in_flight[channel]:
            self.senders[channel].grant(self.credit_in_flight[channel].pop(0))

    @invariant()
    def nothing_is_lost_or_made(self) -> None:
        """Credit everywhere equals free buffers; each segment is in exactly one place."""
        places = list(self.pool.free)
        for channel, receiver in enumerate(self.receivers):
            receiver.check()
            sender = self.senders[channel]
            sender.check()
            on_the_way = sum(self.credit_in_flight[channel]) + len(self.data_in_flight[channel])
            assert receiver.announced == sender.credit + on_the_way
            assert receiver.held == len(self.held[channel])
            places += self.held[channel] + receiver._free_exclusive + receiver._free_floating
        assert sorted(places) == sorted({*range(4), *self.exclusive})

    def teardown(self) -> None:
        """Run everything to its end: all data arrives, so nobody was forgotten; then all segments come home."""
        for _ in range(1000):
            for channel in range(CHANNELS):
                for step in (self.announce, self.grant, self.send, self.arrive):
                    step(channel)
                while self.held[channel]:
                    self.recycle(channel, 0)
        assert self.backlogs == [0] * CHANNELS
        for receiver in self.receivers:
            receiver.release()
        assert sorted(self.pool.free) == [0, 1, 2, 3]
        assert set(self.pool.exclusive_back) == self.exclusive


TestCreditMachine = CreditMachine.TestCase
TestCreditMachine.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
