# SPDX-License-Identifier: Apache-2.0
"""Plans that would deadlock are mended, with as little as that takes; a simulator says whether they stop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from exchange_simulator import Simulator, can_deadlock
from graph_shapes import BLOCKING, HYBRID, PIPELINED, any_graphs, combining, graph
from penstock.errors import PlanError
from penstock.graph import JobGraph, refuse_ordered_sides, regions, without_deadlocks

DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]
CROSSED = [(0, 2), (1, 2), (0, 3), (1, 3)]
ALL_KINDS = (PIPELINED, PIPELINED, PIPELINED, HYBRID, BLOCKING)
SEEDS = range(300)


def crossed(last_of_both: int | None, last_of_other: int | None) -> JobGraph:
    """Two combining stages over the same two sources."""
    job = combining(graph([2, 2, 2, 2], CROSSED), {0: 0, 1: 1}, last_of_both)
    return combining(job, {2: 0, 3: 1}, last_of_other)


STOPPING = {
    "a join of a stage with itself": (combining(graph([2, 2], [(0, 1), (0, 1)]), {0: 0, 1: 1}), {1}),
    "the same, the left side last": (combining(graph([2, 2], [(0, 1), (0, 1)]), {0: 0, 1: 1}, 0), {0}),
    "a diamond that ends in a join": (combining(graph([2] * 4, DIAMOND), {2: 0, 3: 1}), {3}),
    "a diamond with one direct way": (combining(graph([2] * 3, [(0, 1), (0, 2), (1, 2)]), {1: 0, 2: 1}), {2}),
    "one side waits for the end": (
        combining(graph([2] * 3, [(0, 1), (0, 2), (1, 2)], blocking=frozenset({1})), {1: 0, 2: 1}),
        {2},
    ),
    "two joins in crossed order": (crossed(0, 1), {0}),
    "forward edges of a shared stage": (combining(graph([3] * 4, DIAMOND, "forward"), {2: 0, 3: 1}), {3}),
}

STAYING = {
    "a diamond that ends in a union": graph([2] * 4, DIAMOND),
    "two ways from one stage into another": graph([2, 2], [(0, 1), (0, 1)]),
    "two joins in the same order": crossed(0, 0),
    "a join of a join": combining(
        combining(graph([1] * 5, [(0, 3), (1, 3), (3, 4), (2, 4)]), {0: 0, 1: 1}), {2: 0, 3: 1}
    ),
    "the waiting side comes last": combining(
        graph([2] * 3, [(0, 1), (0, 2), (1, 2)], blocking=frozenset({1})), {1: 0, 2: 1}, 0
    ),
    "one stage for two unions": graph([2] * 4, CROSSED),
    "a diamond that is blocking on the later side": combining(
        graph([2] * 4, DIAMOND, blocking=frozenset({3})), {2: 0, 3: 1}
    ),
}


def changed_edges(before: JobGraph, after: JobGraph) -> set[int]:
    """The edges with another kind than before."""
    return {one.id for one, other in zip(before.edges, after.edges, strict=True) if one.kind is not other.kind}


@pytest.mark.parametrize("name", STOPPING)
def test_what_stops_is_mended(name: str) -> None:
    """The simulator finds the stop, the plan gets one hybrid exchange where it is due, and then there is none."""
    job, expected = STOPPING[name]
    assert can_deadlock(job, SEEDS)
    mended, reasons = without_deadlocks(job)
    assert changed_edges(job, mended) == expected
    assert all(mended.edge(number).kind is HYBRID for number in expected)
    assert len(reasons) == len(expected)
    assert not can_deadlock(mended, SEEDS)


@pytest.mark.parametrize("name", STAYING)
def test_what_cannot_stop_is_left_alone(name: str) -> None:
    """Not every second way is a deadlock: what reads all that comes, or in one order everywhere, goes on."""
    job = STAYING[name]
    assert without_deadlocks(job) == (job, ())
    assert not can_deadlock(job, SEEDS)


def test_the_sentences_name_the_exchange_and_the_reason() -> None:
    """They say what is stored, which stage reads in which order, and who would wait."""
    job, _ = STOPPING["a join of a stage with itself"]
    (reason,) = without_deadlocks(job)[1]
    assert reason == (
        "exchange 1 (v0 -> v1): hybrid_full, because 'v1' reads one of its inputs before the other and both come "
        "from 'v0', which would have to stop in the middle"
    )
    (reason,) = without_deadlocks(STOPPING["a diamond that ends in a join"][0])[1]
    assert reason.startswith("exchange 3 (v2 -> v3): hybrid_full, because 'v3' reads 'v1' before it reads 'v2'")


def test_what_the_user_asked_for_is_changed_last() -> None:
    """If another exchange of the circle does as well, the one with a mode of its own stays; else it is changed."""
    job = combining(graph([2] * 4, DIAMOND), {2: 0, 3: 1})
    assert changed_edges(job, without_deadlocks(job, asked={3})[0]) == {1}
    assert changed_edges(job, without_deadlocks(job, asked={1, 3})[0]) == {3}
    assert changed_edges(job, without_deadlocks(job, asked={0, 1, 2, 3})[0]) == {3}


def test_a_detour_over_stored_exchanges_is_cut() -> None:
    """A pipelined exchange beside a blocking way between the same stages would be a region that waits for itself."""
    job = graph([1, 1, 1], [(0, 1), (0, 2), (2, 1)], blocking=frozenset({1, 2}))
    with pytest.raises(PlanError, match="wait for each other"):
        regions(job)
    mended, reasons = without_deadlocks(job)
    assert changed_edges(job, mended) == {0}
    assert [region.vertices for region in regions(mended)] == [(0,), (2,), (1,)]
    assert "of the stages 'v0', 'v1', 'v2' some need results" in reasons[0]


def test_a_circle_of_stages_is_refused() -> None:
    """No mode helps a stage that reads itself."""
    for blocking in (frozenset(), frozenset({0, 1})):
        with pytest.raises(PlanError, match="'v0', 'v1' read each other in a circle"):
            without_deadlocks(graph([1, 1, 1], [(0, 1), (1, 0), (1, 2)], blocking=blocking))


@settings(deadline=None, max_examples=examples(150))
@given(any_graphs(kinds=ALL_KINDS), st.integers(0, 1 << 30))
def test_no_mended_plan_stops(job: JobGraph, seed: int) -> None:
    """Any plan, mended, has an order of regions and runs to its end, at once or region by region."""
    mended, _ = without_deadlocks(job)
    order = regions(mended)
    assert not can_deadlock(mended, range(seed, seed + 5))
    simulator = Simulator(mended, seed)
    assert not any(simulator.stands_still(region.vertices) for region in order)


@settings(deadline=None, max_examples=examples(150))
@given(any_graphs(most=8, kinds=ALL_KINDS), st.sets(st.integers(0, 20)))
def test_nothing_is_changed_in_vain(job: JobGraph, asked: set[int]) -> None:
    """Only pipelined exchanges change, each with a sentence, and without any one of the changes it would be wrong."""
    mended, reasons = without_deadlocks(job, asked)
    changed = changed_edges(job, mended)
    assert [reason.split(" (")[0] for reason in reasons] == [f"exchange {number}" for number in sorted(changed)]
    assert without_deadlocks(mended, asked) == (mended, ())
    for number in changed:
        assert job.edge(number).kind.runs_together
        assert mended.edge(number).kind is job.edge(number).stored
        undone = mended.with_edge(replace(mended.edge(number), kind=job.edge(number).kind))
        assert without_deadlocks(undone, asked)[1]


@settings(deadline=None, max_examples=examples(120), derandomize=True)
@given(any_graphs(most=5, kinds=ALL_KINDS))
def test_each_change_put_back_is_a_stop(job: JobGraph) -> None:
    """Each exchange that is stored for the order in which a stage reads would really stop: the simulator finds it."""
    job = replace(job, vertices=tuple(replace(vertex, parallelism=2) for vertex in job.vertices))
    mended, reasons = without_deadlocks(job)
    for number, reason in zip(sorted(changed_edges(job, mended)), reasons, strict=True):
        if "some need results" not in reason:
            assert can_deadlock(mended.with_edge(replace(mended.edge(number), kind=PIPELINED)), range(1000))


@settings(deadline=None, max_examples=examples(100))
@given(any_graphs())
def test_what_the_simulator_stops_is_changed(job: JobGraph) -> None:
    """A plan that is left as it is does not stop, however the rows fall."""
    if without_deadlocks(job)[1] == ():
        assert not can_deadlock(job, range(20))


@settings(deadline=None, max_examples=examples(60))
@given(any_graphs(most=12, kinds=ALL_KINDS))
def test_plans_without_combining_stages_stay_pipelined_unless_regions_wait(job: JobGraph) -> None:
    """Without joins, only a stored detour around a pipelined exchange is changed."""
    plain = replace(job, vertices=tuple(replace(vertex, combine=None) for vertex in job.vertices))
    mended, reasons = without_deadlocks(plain)
    assert all("some need results that the others only give" in reason for reason in reasons)
    if all(edge.kind.runs_together for edge in plain.edges):
        assert mended == plain


def test_a_join_without_credit_is_refused() -> None:
    """Both of its sides would share one window; a union of the same stages reads whatever comes."""
    union = graph([2, 2, 2], [(0, 2), (1, 2)])
    joined = combining(union, {0: 0, 1: 1})
    for flow_control in ("tcp", "throttle"):
        with pytest.raises(PlanError, match="run this job with credit"):
            refuse_ordered_sides(joined, flow_control)
        refuse_ordered_sides(union, flow_control)
    refuse_ordered_sides(joined, "credit")
