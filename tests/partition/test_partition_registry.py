# SPDX-License-Identifier: Apache-2.0
"""The partition registry: distinct answers, fencing, waiting, tombstones."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from effort import examples
from penstock.errors import (
    PartitionExpiredError,
    PartitionLostError,
    PartitionNotProducedError,
    PartitionReleasedError,
    PenstockError,
    ProducerFailedError,
    ProtocolError,
    StaleError,
)
from penstock.partition.lifecycle import PartitionState
from penstock.partition.registry import PartitionRegistry, WaitingRequest
from penstock.partition.result_partition import PartitionCallbacks, PipelinedPartition
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId


def name(attempt: int = 5, index: int = 0, dataset: DatasetId = DatasetId("job", 0)) -> PartitionId:  # noqa: B008 - a value
    """A partition's identity."""
    return PartitionId(dataset, index, attempt)


def partition(identity: PartitionId, registry: PartitionRegistry | None = None) -> PipelinedPartition:
    """A partition that tells the registry of its end, as in an environment."""

    def on_end(state: PartitionState) -> None:
        if registry is not None:
            registry.bury(identity)

    return PipelinedPartition(identity, 2, PartitionCallbacks(on_recycle=lambda piece: None, on_end=on_end))


def answer(registry: PartitionRegistry, identity: PartitionId) -> type[PenstockError] | None:
    """The type of the answer to a request; None is a view."""
    try:
        view = registry.find(identity).create_view(0, lambda: None)
    except PenstockError as error:
        return type(error) if str(identity) in str(error) else None
    view.release()
    return None


class Waiter:
    """Writes down what it is called with."""

    def __init__(self) -> None:
        self.calls: list[PenstockError | None] = []

    def __call__(self, error: PenstockError | None) -> None:
        """Write it down."""
        self.calls.append(error)


def test_registered_partition_is_read() -> None:
    """A request gives a view over the partition's data."""
    registry = PartitionRegistry("host-a")
    registry.register(partition(name()))
    assert answer(registry, name()) is None
    assert registry.occupying() == [name()]
    assert registry.get(name()) is not None


def test_second_registration_is_refused() -> None:
    """One identity is one partition."""
    registry = PartitionRegistry("host-a")
    registry.register(partition(name()))
    with pytest.raises(ProtocolError, match="registered already on host-a"):
        registry.register(partition(name()))


def test_answers_are_distinct() -> None:
    """Released, expired, lost, failed and not produced are different errors, for known and unknown partitions."""
    for known in (True, False):
        registry = PartitionRegistry("host-a")
        ids = [name(index=index) for index in range(5)]
        if known:
            for identity in ids[:4]:
                registry.register(partition(identity, registry))
        registry.release([ids[0]])
        registry.expire([ids[1]])
        registry.lose([ids[2]], "host down")
        registry.fail(ids[3], RuntimeError("boom"))
        assert [answer(registry, identity) for identity in ids] == [
            PartitionReleasedError,
            PartitionExpiredError,
            PartitionLostError,
            ProducerFailedError,
            PartitionNotProducedError,
        ]
        with pytest.raises(ProducerFailedError, match=r"host-a.*RuntimeError: boom"):
            registry.find(ids[3])
        assert registry.occupying() == []


def test_a_range_is_the_partitions_business_and_an_answer_needs_no_view() -> None:
    """A pipelined partition refuses a range; one that is gone, or was never there, is not found."""
    registry = PartitionRegistry("host-a")
    registry.register(partition(name(), registry))
    with pytest.raises(ProtocolError, match="pipelined"):
        registry.find(name()).create_view(0, lambda: None, 2)
    registry.expire([name()])
    with pytest.raises(PartitionExpiredError):
        registry.find(name())
    with pytest.raises(PartitionNotProducedError):
        registry.find(name(index=3))


def test_first_end_is_remembered() -> None:
    """A failed partition that is released afterwards stays failed: the cause is what matters."""
    registry = PartitionRegistry()
    registry.register(partition(name(), registry))
    registry.fail(name(), "boom")
    registry.release([name()])
    assert answer(registry, name()) is ProducerFailedError


def test_partition_that_ends_by_itself_leaves_a_tombstone() -> None:
    """Consumed and closed, it occupies nothing, and a late reader hears that it was released."""
    registry = PartitionRegistry()
    mine = partition(name(), registry)
    registry.register(mine)
    for index in range(2):
        mine.create_view(index, lambda: None).release()
    registry.bury(name())
    assert registry.occupying() == [name()], "not ended yet"
    mine.finish()
    mine.close_producer()
    assert registry.occupying() == []
    assert answer(registry, name()) is PartitionReleasedError


def test_requests_are_fenced_by_attempt() -> None:
    """An older attempt than the one known is stale; a newer one is not produced yet; its own is read."""
    registry = PartitionRegistry("host-a")
    registry.register(partition(name(attempt=7)))
    assert answer(registry, name(attempt=6)) is StaleError
    assert answer(registry, name(attempt=8)) is PartitionNotProducedError
    assert answer(registry, name(attempt=6, index=1)) is PartitionNotProducedError
    assert answer(registry, name(attempt=6, dataset=DatasetId("job", 1))) is PartitionNotProducedError
    registry.register(partition(name(attempt=6)))
    assert answer(registry, name(attempt=6)) is None


def test_fencing_outlives_the_partition() -> None:
    """After attempt 7 was released, attempt 6 is still stale."""
    registry = PartitionRegistry()
    registry.register(partition(name(attempt=7), registry))
    registry.release([name(attempt=7)])
    assert answer(registry, name(attempt=6)) is StaleError


def test_producer_that_comes_after_its_release_is_refused() -> None:
    """A partition given up before its producer registered can't come to life."""
    registry = PartitionRegistry()
    registry.release([name()])
    with pytest.raises(StaleError, match="released before"):
        registry.register(partition(name()))
    assert registry.occupying() == []


def test_waiting_reader_is_told_when_the_partition_comes() -> None:
    """Its waiter is called once, and then the request succeeds, even from inside the call."""
    registry = PartitionRegistry()
    got: list[object] = []
    registry.wait(name(), lambda error: got.append((error, answer(registry, name()))), now=0.0)
    registry.register(partition(name()))
    assert got == [(None, None)]
    assert registry.statistics().waiting == 0
    assert registry.expire_waiting(1e9) == 0


def test_waiting_has_a_deadline() -> None:
    """A reader that waits too long hears what it waited for and how long, each at its own time."""
    registry = PartitionRegistry("host-a", timeout=10.0)
    early, late = Waiter(), Waiter()
    registry.wait(name(), early, now=100.0)
    registry.wait(name(), late, now=105.0)
    assert registry.expire_waiting(109.9) == 0
    assert registry.expire_waiting(110.0) == 1
    assert late.calls == []
    (error,) = early.calls
    assert isinstance(error, PartitionNotProducedError)
    for part in (str(name()), "host-a", "10.0 s"):
        assert part in str(error)
    assert registry.expire_waiting(200.0) == 1


def test_cancelled_waiting_is_silent() -> None:
    """A reader that is gone is not called, and cancelling twice does no harm."""
    registry = PartitionRegistry()
    waiter, other = Waiter(), Waiter()
    request = registry.wait(name(), waiter, now=0.0)
    registry.wait(name(), other, now=0.0)
    registry.cancel(request)
    registry.cancel(request)
    registry.register(partition(name()))
    assert waiter.calls == []
    assert other.calls == [None]
    registry.cancel(request)


@pytest.mark.parametrize("end", ["release", "lose", "fail", "job", "close"])
def test_waiting_reader_is_told_of_the_end_at_once(end: str) -> None:
    """A partition given up while readers wait for it answers them without waiting for the deadline."""
    registry, waiter = PartitionRegistry(), Waiter()
    registry.wait(name(), waiter, now=0.0)
    kind: type[PenstockError] = PartitionReleasedError
    if end == "release":
        registry.release([name()])
    elif end == "lose":
        registry.lose([name()], "gone")
        kind = PartitionLostError
    elif end == "fail":
        registry.fail(name(), "boom")
        kind = ProducerFailedError
    elif end == "job":
        registry.release_job("job")
    else:
        registry.close()
    assert [type(call) for call in waiter.calls] == [kind]
    assert registry.statistics().waiting == 0


def test_newer_attempt_makes_waiting_readers_stale() -> None:
    """A reader that waits for attempt 5 is answered when attempt 6 registers; one for 7 or another index waits on."""
    registry = PartitionRegistry()
    older, newer, other = Waiter(), Waiter(), Waiter()
    registry.wait(name(attempt=5), older, now=0.0)
    registry.wait(name(attempt=7), newer, now=0.0)
    registry.wait(name(attempt=5, index=1), other, now=0.0)
    registry.register(partition(name(attempt=6)))
    assert [type(call) for call in older.calls] == [StaleError]
    assert newer.calls == other.calls == []


def test_tombstones_are_bounded() -> None:
    """However many partitions come and go, the books stay small; the newest ends are the ones remembered."""
    registry = PartitionRegistry(tombstones=10)
    for index in range(1000):
        registry.register(partition(name(index=index), registry))
        registry.lose([name(index=index)], "x")
    assert registry.statistics().tombstones == 10
    assert len(registry._attempts) == 10
    assert answer(registry, name(index=999)) is PartitionLostError
    assert answer(registry, name(index=0)) is PartitionNotProducedError


def test_job_that_is_over_is_one_answer() -> None:
    """All of a job is released, its tombstones become one, and nothing of it can be registered or waited for."""
    registry = PartitionRegistry()
    for index in range(3):
        registry.register(partition(name(index=index), registry))
    registry.fail(name(index=0), "boom")
    other = name(dataset=DatasetId("job2", 0))
    registry.register(partition(other, registry))
    assert sorted(registry.release_job("job")) == [name(index=1), name(index=2)]
    assert registry.occupying() == [other]
    assert registry.statistics().tombstones == 0
    assert answer(registry, name(index=1)) is PartitionReleasedError
    assert answer(registry, name(index=77)) is PartitionReleasedError
    assert answer(registry, other) is None
    with pytest.raises(StaleError, match="released with its job"):
        registry.register(partition(name(index=9)))
    registry.release([name(index=1)])
    assert registry.statistics().tombstones == 0
    assert list(registry._attempts) == [(DatasetId("job2", 0), 0)]


def test_close_releases_everything() -> None:
    """Afterwards nothing occupies anything; twice does no harm."""
    registry = PartitionRegistry()
    registry.register(partition(name(), registry))
    registry.close()
    registry.close()
    assert len(registry) == 0
    assert answer(registry, name()) is PartitionReleasedError


class RegistryMachine(RuleBasedStateMachine):
    """Producers, readers and owners at random over few identities, against a model of what was said before."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = PartitionRegistry(timeout=10.0)
        self.live: dict[PartitionId, PipelinedPartition] = {}
        self.dead: dict[PartitionId, type[PenstockError]] = {}
        self.waiting: list[tuple[WaitingRequest, Waiter]] = []
        self.silenced: list[tuple[Waiter, int]] = []
        self.now = 0.0

    identities = st.builds(name, attempt=st.integers(0, 3), index=st.integers(0, 1))

    @rule(identity=identities)
    def register(self, identity: PartitionId) -> None:
        """A producer comes: accepted unless it is known or has ended."""
        mine = partition(identity, self.registry)
        try:
            self.registry.register(mine)
        except ProtocolError:
            assert identity in self.live
        except StaleError:
            assert identity in self.dead
        else:
            assert identity not in self.live
            assert identity not in self.dead
            self.live[identity] = mine

    @rule(identity=identities)
    def request(self, identity: PartitionId) -> None:
        """A reader asks; the one answer that the model allows comes."""
        known = {key.attempt for key in [*self.live, *self.dead] if key.index == identity.index}
        if identity in self.live:
            view = self.live[identity]._subpartitions[0]._view
            assert answer(self.registry, identity) == (PartitionReleasedError if view else None)
        elif identity in self.dead:
            assert answer(self.registry, identity) is self.dead[identity]
        elif max(known, default=-1) > identity.attempt:
            assert answer(self.registry, identity) is StaleError
        else:
            assert answer(self.registry, identity) is PartitionNotProducedError
            waiter = Waiter()
            self.waiting.append((self.registry.wait(identity, waiter, self.now), waiter))

    @rule(identity=identities, how=st.sampled_from(["release", "lose", "fail", "expire"]))
    def end(self, identity: PartitionId, how: str) -> None:
        """A partition ends, known or not."""
        errors = {
            "release": PartitionReleasedError,
            "lose": PartitionLostError,
            "fail": ProducerFailedError,
            "expire": PartitionExpiredError,
        }
        if how == "fail":
            self.registry.fail(identity, "x")
        else:
            {"release": self.registry.release, "lose": self.registry.lose, "expire": self.registry.expire}[how](
                [identity], "x"
            )
        self.live.pop(identity, None)
        self.dead.setdefault(identity, errors[how])

    @rule(seconds=st.integers(0, 6))
    def pass_time(self, seconds: int) -> None:
        """Time goes by."""
        self.now += seconds
        self.registry.expire_waiting(self.now)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A reader gives up; it must not be called later."""
        request, waiter = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.registry.cancel(request)
        self.silenced.append((waiter, len(waiter.calls)))

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """A waiter is called exactly once: at the latest at its deadline, at once when the answer is known."""
        for request, waiter in self.waiting:
            identity = request.partition
            newest = max((k.attempt for k in self.live if k.index == identity.index), default=-1)
            settled = identity in self.live or identity in self.dead or newest > identity.attempt
            assert len(waiter.calls) <= 1
            if settled or request.since + 10.0 <= self.now:
                assert len(waiter.calls) == 1
        assert all(len(waiter.calls) == calls for waiter, calls in self.silenced)
        assert set(self.registry.occupying()) == set(self.live)
        assert self.registry.statistics().tombstones == len(self.dead)


RegistryMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestRegistryMachine = RegistryMachine.TestCase
