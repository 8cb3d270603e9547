# SPDX-License-Identifier: Apache-2.0
"""Network and local buffer pools: guarantees, redistribution, overdraft, listeners, destruction."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from effort import examples
from penstock.buffer import LocalBufferPool, NetworkBufferPool
from penstock.errors import InsufficientBuffersError, TaskCancelledError


def drain(pool: LocalBufferPool) -> list[int]:
    """Request until there is nothing more."""
    segments = []
    while (segment := pool.request()) is not None:
        segments.append(segment)
    return segments


def keep(into: list[int | None], accept: bool = True) -> Callable[[int | None], bool]:
    """A listener that writes down what it is offered."""

    def listener(segment: int | None) -> bool:
        into.append(segment)
        return accept

    return listener


def test_every_segment_is_handed_out_once() -> None:
    """A pool over everything gives each index exactly once, then None, and is unavailable."""
    network = NetworkBufferPool(8)
    pool = network.create_local_pool(1, 100)
    assert sorted(drain(pool)) == list(range(8))
    assert pool.request() is None
    assert not pool.is_available
    assert network.free == 0
    network.check()


def test_warm_segments_come_first() -> None:
    """The segment recycled last is handed out next: its pages are in the cache and mapped."""
    pool = NetworkBufferPool(8).create_local_pool(1, 8)
    first, second = pool.request(), pool.request()
    assert first is not None
    assert second is not None
    pool.recycle(first)
    assert pool.request() == first
    pool.recycle(second)
    pool.recycle(first)
    assert pool.request() == first


def test_guarantee_that_does_not_fit_is_refused_with_the_numbers() -> None:
    """The error names who asked, what was asked, what is left, and the three ways out; nothing changes."""
    network = NetworkBufferPool(10)
    network.create_local_pool(7, 9, owner="gate 0 of map-3")
    with pytest.raises(InsufficientBuffersError) as caught:
        network.create_local_pool(4, 4, owner="gate 1 of map-3")
    text = str(caught.value)
    for part in ("gate 1 of map-3", "4 network buffers", "of 10 only 3", "1 pools", "spark.penstock.network.memory"):
        assert part in text
    assert "spark.penstock.network.segmentSize" in text
    assert "fewer partitions" in text
    assert network.statistics().guaranteed == 7
    network.check()


@pytest.mark.parametrize(("required", "maximum", "overdraft"), [(0, 1, 0), (-1, 1, 0), (3, 2, 0), (1, 1, -1)])
def test_nonsensical_limits_are_refused(required: int, maximum: int, overdraft: int) -> None:
    """A pool needs a guarantee of at least one, a maximum not below it, and no negative overdraft."""
    with pytest.raises(ValueError, match="a pool of"):
        NetworkBufferPool(8).create_local_pool(required, maximum, overdraft)


def test_spare_is_shared_in_proportion_without_remainder() -> None:
    """Pools get their guarantee and a share of the spare by how much they can use; fixed pools stay fixed."""
    network = NetworkBufferPool(21)
    fixed = network.create_local_pool(2, 2)
    small = network.create_local_pool(1, 5)  # can use 4 more
    large = network.create_local_pool(2, 14)  # can use 12 more
    assert (fixed.size, small.size, large.size) == (2, 5, 14)
    other = network.create_local_pool(4, 12)  # 12 spare now for 4 + 12 + 8
    assert (fixed.size, small.size, large.size, other.size) == (2, 1 + 2, 2 + 6, 4 + 4)
    network.check()
    other.lazy_destroy()
    assert (small.size, large.size) == (5, 14)


def test_no_spare_leaves_every_pool_at_its_guarantee() -> None:
    """When guarantees use up the memory, growable pools shrink to what they were promised."""
    network = NetworkBufferPool(10)
    first = network.create_local_pool(3, 10)
    assert first.size == 10
    second = network.create_local_pool(7, 20)
    assert (first.size, second.size) == (3, 7)


@pytest.mark.parametrize("total", [5, 16, 23, 100, 1000])
def test_rounding_loses_nothing(total: int) -> None:
    """However shares round, the sum of all sizes is the memory, or the sum of maxima if that is less."""
    network = NetworkBufferPool(total)
    pools = [network.create_local_pool(1, 1 + 3 * number) for number in range(5)]
    assert sum(pool.size for pool in pools) == min(total, sum(pool.limits.maximum for pool in pools))
    network.check()


def test_shrinking_takes_excess_as_it_is_recycled() -> None:
    """A pool shrunk while segments are out is unavailable until it is below its size; the excess goes to others."""
    network = NetworkBufferPool(6)
    old = network.create_local_pool(2, 6)
    held = drain(old)
    assert len(held) == 6
    new = network.create_local_pool(3, 3)
    assert old.statistics().excess == 6 - old.size == 3
    assert new.request() is None
    got: list[int | None] = []
    assert new.add_listener(keep(got))
    old.recycle(held[0])
    assert got == [held[0]]
    assert old.request() is None
    old.recycle(held[1])
    assert old.request() is None
    assert new.request() == held[1]
    network.check()


def test_size_below_the_guarantee_is_refused() -> None:
    """`set_size` clamps to the maximum and refuses to break the guarantee."""
    pool = NetworkBufferPool(10).create_local_pool(2, 5)
    pool.set_size(50)
    assert pool.size == 5
    with pytest.raises(ValueError, match="guaranteed"):
        pool.set_size(1)


def test_overdraft_only_above_an_exhausted_size() -> None:
    """Overdraft counts from the size; a pool in overdraft is unavailable until enough came back."""
    network = NetworkBufferPool(8)
    pool = network.create_local_pool(2, 2, overdraft=2)
    plain = pool.request_overdraft()
    assert plain is not None
    assert pool.statistics().excess == 0
    held = [plain, pool.request(), pool.request_overdraft(), pool.request_overdraft()]
    assert None not in held
    assert pool.request_overdraft() is None
    assert pool.statistics().excess == 2
    for segment in held[:2]:
        pool.recycle(segment)  # type: ignore[arg-type]
        assert not pool.is_available
    pool.recycle(held[2])  # type: ignore[arg-type]
    assert pool.is_available
    network.check()


def test_overdraft_cannot_conjure_segments() -> None:
    """With nothing free there is no overdraft either."""
    network = NetworkBufferPool(2)
    pool = network.create_local_pool(2, 2, overdraft=5)
    drain(pool)
    assert pool.request_overdraft() is None


def test_recycled_segment_goes_to_own_listener_then_to_others() -> None:
    """The pool's own listener is asked first; one that refuses passes the segment on to the next, then to others."""
    network = NetworkBufferPool(3)
    mine = network.create_local_pool(2, 2)
    other = network.create_local_pool(1, 1, overdraft=0)
    held = drain(mine)
    taken = drain(other)
    first, second, foreign = [], [], []  # type: ignore[var-annotated]
    assert mine.add_listener(keep(first, accept=False))
    assert mine.add_listener(keep(second))
    assert other.add_listener(keep(foreign))
    mine.recycle(held[0])
    assert (first, second, foreign) == ([held[0]], [held[0]], [])
    mine.recycle(held[1])
    assert foreign == []  # the other pool has all it may have
    other.recycle(taken[0])
    assert foreign == [taken[0]]
    network.check()


def test_listener_is_called_once_per_registration() -> None:
    """After one notification a listener has to register again; it can't register while a segment is to be had."""
    network = NetworkBufferPool(2)
    pool = network.create_local_pool(2, 2)
    calls: list[int | None] = []
    assert not pool.add_listener(keep(calls))
    one, two = drain(pool)
    assert pool.add_listener(keep(calls, accept=False))
    pool.recycle(one)
    pool.recycle(two)
    assert calls == [one]
    assert pool.is_available


def test_listener_may_call_back_into_pools() -> None:
    """A listener that recycles, requests or destroys in its call meets straight books, also in other pools."""
    network = NetworkBufferPool(4)
    pools = [network.create_local_pool(2, 2) for _ in range(2)]
    held = [drain(pool) for pool in pools]
    log: list[str] = []

    def chain(segment: int | None) -> bool:
        network_in_order()
        log.append(f"first {segment}")
        pools[1].recycle(held[1][0])
        return True

    def network_in_order() -> None:
        assert network.statistics().free + sum(pool.requested for pool in pools) == 4

    def last(segment: int | None) -> bool:
        network_in_order()
        log.append(f"second {segment}")
        pools[0].lazy_destroy()
        return False

    assert pools[0].add_listener(chain)
    assert pools[1].add_listener(last)
    pools[0].recycle(held[0][0])
    assert log == [f"first {held[0][0]}", f"second {held[1][0]}"]
    assert pools[0].is_destroyed
    assert network.free == 1
    network.check()


def test_listener_that_raises_loses_no_segment() -> None:
    """The error reaches the one who recycled, and the segment is free."""
    network = NetworkBufferPool(1)
    pool = network.create_local_pool(1, 1)
    (held,) = drain(pool)

    def broken(segment: int | None) -> bool:
        raise RuntimeError(f"no use for {segment}")

    assert pool.add_listener(broken)
    with pytest.raises(RuntimeError):
        pool.recycle(held)
    network.check()
    assert pool.request() == held


def test_waiting_pools_take_turns() -> None:
    """Of several waiting pools each gets one segment before any gets a second."""
    network = NetworkBufferPool(6)
    hog = network.create_local_pool(1, 6)
    held = drain(hog)
    waiting = [network.create_local_pool(2, 2, owner=str(number)) for number in range(2)]
    order: list[str] = []
    for pool in waiting:
        for _ in range(2):
            assert pool.add_listener(lambda _, owner=pool.owner: order.append(owner) or True)
    for segment in held[:4]:
        hog.recycle(segment)
    assert order == ["0", "1", "0", "1"]


def test_destroyed_pool_refuses_and_gets_its_segments_back() -> None:
    """Requests fail as a cancelled task's do, listeners hear None, and segments still out return on recycle."""
    network = NetworkBufferPool(4)
    pool = network.create_local_pool(4, 4, owner="partition p")
    held = drain(pool)
    calls: list[int | None] = []
    assert pool.add_listener(keep(calls))
    pool.lazy_destroy()
    pool.lazy_destroy()
    assert calls == [None]
    for ask in (pool.request, pool.request_overdraft):
        with pytest.raises(TaskCancelledError, match="partition p"):
            ask()
    assert not pool.add_listener(keep(calls))
    assert network.statistics().guaranteed == 0
    for segment in held:
        pool.recycle(segment)
    assert network.free == 4
    assert not pool.is_available
    network.check()


def test_destroying_a_pool_feeds_those_who_wait() -> None:
    """A destroyed pool's segments go to another pool's listeners; two pools can't hand them back and forth."""
    network = NetworkBufferPool(2)
    first = network.create_local_pool(1, 2)
    held = drain(first)
    second = network.create_local_pool(1, 2)
    got: list[int | None] = []
    assert second.add_listener(keep(got))
    first.lazy_destroy()
    assert got == []
    first.recycle(held[0])
    assert got == [held[0]]
    second.lazy_destroy()
    first.recycle(held[1])
    second.recycle(held[0])
    assert network.free == 2
    network.check()


def test_foreign_and_double_recycles_are_refused() -> None:
    """A segment comes back only from the pool that has it, and only once."""
    network = NetworkBufferPool(4)
    one, two = network.create_local_pool(1, 2), network.create_local_pool(1, 2)
    segment = one.request()
    assert segment is not None
    for pool, wrong in [(two, segment), (one, 3), (one, 99), (one, -1)]:
        with pytest.raises(ValueError, match="not out"):
            pool.recycle(wrong)
    one.recycle(segment)
    with pytest.raises(ValueError, match="not out"):
        one.recycle(segment)
    network.check()


def test_exclusive_reservation_is_a_fixed_guarantee() -> None:
    """Exclusive buffers shrink what others may have, come late where segments are out, and go back at release."""
    network = NetworkBufferPool(6)
    floating = network.create_local_pool(1, 6)
    held = drain(floating)
    exclusive = network.reserve_exclusive(4, "channels of gate 0")
    assert floating.size == 2
    assert drain(exclusive) == []
    got: list[int | None] = []
    assert all(exclusive.add_listener(keep(got)) for _ in range(4))
    for segment in held[:4]:
        floating.recycle(segment)
    assert got == held[:4]
    with pytest.raises(InsufficientBuffersError, match="channels of gate 1"):
        network.reserve_exclusive(2, "channels of gate 1")
    exclusive.lazy_destroy()
    assert floating.size == 6
    for segment in held[:4]:
        exclusive.recycle(segment)
    network.check()
    assert network.statistics().in_use == 2


def test_closing_the_network_pool_ends_all_pools() -> None:
    """After `close` every pool is destroyed, twice does no harm, and late segments still come home."""
    network = NetworkBufferPool(4)
    pools = [network.create_local_pool(1, 4), network.reserve_exclusive(1)]
    segment = pools[0].request()
    network.close()
    network.close()
    assert all(pool.is_destroyed for pool in pools)
    pools[0].recycle(segment)  # type: ignore[arg-type]
    assert network.statistics().free == 4
    assert network.statistics().pools == 0


class PoolMachine(RuleBasedStateMachine):
    """Random interleavings of everything pools can be asked, against a model of who has which segment."""

    TOTAL = 12

    def __init__(self) -> None:
        super().__init__()
        self.network = NetworkBufferPool(self.TOTAL)
        self.pools: list[LocalBufferPool] = []
        self.held: dict[int, LocalBufferPool] = {}

    def got(self, segment: int | None, pool: LocalBufferPool) -> None:
        """Note a segment; it must not be with anybody else."""
        if segment is not None:
            assert segment not in self.held
            self.held[segment] = pool

    @rule(required=st.integers(1, 5), extra=st.integers(0, 8), overdraft=st.integers(0, 3))
    def create(self, required: int, extra: int, overdraft: int) -> None:
        """A new pool, or a refusal exactly when its guarantee does not fit."""
        fits = required <= self.TOTAL - self.network.statistics().guaranteed
        try:
            self.pools.append(self.network.create_local_pool(required, required + extra, overdraft))
        except InsufficientBuffersError:
            assert not fits
        else:
            assert fits

    @precondition(lambda self: self.pools)
    @rule(data=st.data(), overdraft=st.booleans())
    def request(self, data: st.DataObject, overdraft: bool) -> None:
        """A segment is given exactly when the pool is available; overdraft goes further by its limit."""
        pool = data.draw(st.sampled_from(self.pools))
        available = pool.is_available
        if overdraft:
            room = pool.requested < pool.size + pool.limits.overdraft and self.network.free > 0
            segment = pool.request_overdraft()
            assert (segment is not None) == room
        else:
            segment = pool.request()
            assert (segment is not None) == available
        self.got(segment, pool)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def recycle(self, data: st.DataObject) -> None:
        """Any segment that is out comes back, also to a destroyed pool."""
        segment = data.draw(st.sampled_from(sorted(self.held)))
        self.held.pop(segment).recycle(segment)

    @precondition(lambda self: self.pools)
    @rule(data=st.data(), behaviour=st.sampled_from(["accept", "refuse", "recycle", "destroy", "again"]))
    def listen(self, data: st.DataObject, behaviour: str) -> None:
        """A listener that takes, refuses, or does something to the pools from inside its call."""
        pool = data.draw(st.sampled_from(self.pools))

        def listener(segment: int | None) -> bool:
            if segment is None or behaviour == "refuse":
                return False
            self.got(segment, pool)
            if behaviour == "recycle":
                other = min(self.held)
                self.held.pop(other).recycle(other)
            elif behaviour == "destroy" and pool in self.pools:
                self.pools.remove(pool)
                pool.lazy_destroy()
            elif behaviour == "again":
                pool.add_listener(lambda late: late is not None and (self.got(late, pool) or True))
            return True

        available = pool.is_available
        assert pool.add_listener(listener) == (not available)

    @precondition(lambda self: self.pools)
    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        """A pool ends while its segments may be out."""
        pool = data.draw(st.sampled_from(self.pools))
        self.pools.remove(pool)
        pool.lazy_destroy()

    @invariant()
    def books_are_straight(self) -> None:
        """The pool's own invariants, and the model's count."""
        self.network.check()
        assert self.network.statistics().in_use == len(self.held)

    @invariant()
    def guarantees_can_be_had(self) -> None:
        """A pool below its size finds a segment, unless others are above theirs for the moment."""
        wanted = sum(max(0, pool.size - pool.requested) for pool in self.pools)
        above = sum(max(0, pool.requested - pool.size) for pool in self.pools)
        destroyed = sum(pool.is_destroyed for pool in self.held.values())
        assert self.network.free + above + destroyed >= wanted

    def teardown(self) -> None:
        """Everything comes home."""
        self.network.close()
        for segment, pool in list(self.held.items()):
            pool.recycle(segment)
        assert self.network.free == self.TOTAL
        self.network.check()


PoolMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
