# SPDX-License-Identifier: Apache-2.0
"""The subtasks that run again after a failure, against the rules written down once more, channel by channel."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from graph_shapes import BLOCKING, HYBRID, PIPELINED, any_graphs, graph
from penstock.graph import ExecutionGraph, JobGraph, Place, downstream_of, restart_set
from penstock.graph.shares import Share

KINDS = (PIPELINED, HYBRID, BLOCKING, BLOCKING)


@dataclass
class View:
    """A job at one moment; what is not named has not started, is not announced and not available."""

    started: set[Place] = field(default_factory=set)
    finished: set[Place] = field(default_factory=set)
    announced: set[tuple[int, int]] = field(default_factory=set)
    available: set[tuple[int, int]] = field(default_factory=set)
    questions: int = 0

    def has_started(self, place: Place) -> bool:
        """As asked."""
        self.questions += 1
        return place in self.started

    def has_finished(self, place: Place) -> bool:
        """As asked."""
        self.questions += 1
        return place in self.finished

    def was_announced(self, edge: int, producer: int) -> bool:
        """As asked."""
        self.questions += 1
        return (edge, producer) in self.announced

    def is_available(self, edge: int, producer: int) -> bool:
        """As asked."""
        self.questions += 1
        return (edge, producer) in self.available


def all_places(job: JobGraph) -> list[Place]:
    """Every subtask."""
    return [(vertex.id, subtask) for vertex, subtask in ExecutionGraph(job).subtasks()]


def everything_done(job: JobGraph) -> View:
    """All subtasks have finished, and all that is stored is there."""
    places = set(all_places(job))
    partitions = {(edge.id, subtask) for edge in job.edges for vertex, subtask in places if vertex == edge.producer}
    stored = {item for item in partitions if not job.edge(item[0]).kind.runs_together}
    return View(set(places), set(places), partitions, stored)


def channels(job: JobGraph) -> list[tuple[int, Place, Place]]:
    """Every edge, producer and consumer that a channel joins."""
    execution = ExecutionGraph(job)
    return [
        (edge.id, (edge.producer, producer), (edge.consumer, consumer))
        for edge in job.edges
        for consumer in range(job.vertex(edge.consumer).parallelism)
        for producer, _, _ in execution.channels_of(edge.id, consumer)
    ]


def written_down_once_more(job: JobGraph, failed: set[Place], view: View) -> set[Place]:
    """The rules, one channel at a time, until nothing is added."""
    found = set(failed)
    joined = {place: {place} for place in all_places(job)}
    pairs = [(one, two) for edge, one, two in channels(job) if job.edge(edge).kind.runs_together]
    pairs += [
        (one, two) for one in joined for two in joined if one[0] == two[0] and job.vertex(one[0]).reads_dataframe
    ]
    for one, two in pairs * len(joined):
        joined[one] |= joined[two]
        joined[two] |= joined[one]
    while True:
        more = {fellow for place in found for fellow in joined[place]}
        for edge, producer, consumer in channels(job):
            stored = not job.edge(edge).kind.runs_together
            if consumer in found and stored and (edge, producer[1]) not in view.available:
                more.add(producer)
            if producer in found and (edge, producer[1]) in view.announced and consumer not in view.finished:
                more.add(consumer)
        more = {place for place in more if place in view.started} - found
        if not more:
            return found
        found |= more


def with_shares(job: JobGraph, draw: random.Random) -> JobGraph:
    """Some vertices after exchanges to all read shares, some of them parts of one subpartition."""
    for vertex in job.vertices:
        inputs = job.inputs_of(vertex.id)
        if (
            inputs
            and not any(edge.is_pointwise for edge in inputs + job.outputs_of(vertex.id))
            and draw.random() < 0.5
        ):
            parts = draw.randint(1, 3)
            shares = (Share(0, 2), *(Share(2, 1, part, parts, draw.randint(0, 1)) for part in range(parts)))
            chosen = replace(vertex, subpartitions=3, shares=shares, parallelism=len(shares))
            job = job.with_vertex(chosen)
    return job


@st.composite
def moments(draw: st.DrawFn) -> tuple[JobGraph, View, set[Place]]:
    """A job, how far it is, and what has failed of what was started."""
    job = draw(any_graphs(kinds=KINDS))
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    job = with_shares(job, chance)
    for vertex in job.vertices:
        if not job.inputs_of(vertex.id) and chance.random() < 0.3:
            job = job.with_vertex(replace(vertex, reads_dataframe=True))
    likely = [chance.choice([0.1, 0.5, 0.9, 1.0]) for _ in range(4)]
    done = everything_done(job)
    started = {place for place in sorted(done.started) if chance.random() < likely[0]}
    finished = {place for place in sorted(started) if chance.random() < likely[1]}
    announced = {item for item in sorted(done.announced) if chance.random() < likely[2]}
    available = {item for item in sorted(done.available) if chance.random() < likely[3]}
    failed = {place for place in sorted(started) if chance.random() < chance.choice([0.1, 0.4])}
    return job, View(started, finished, announced, available), failed


@settings(deadline=None, max_examples=examples(300))
@given(moments())
def test_the_restart_set_is_what_the_rules_say_and_no_more(moment: tuple[JobGraph, View, set[Place]]) -> None:
    """Equal to the least set that is closed under the rules; a second failure of it adds nothing."""
    job, view, failed = moment
    found = restart_set(job, failed, view)
    assert found == written_down_once_more(job, failed, view)
    assert failed <= found <= view.started
    assert restart_set(job, found, view) == found


@settings(deadline=None, max_examples=examples(150))
@given(moments())
def test_downstream_is_every_reader(moment: tuple[JobGraph, View, set[Place]]) -> None:
    """All that are downstream of the places over any number of channels, as far as they have started."""
    job, view, failed = moment
    reached = set(failed)
    for _ in job.vertices:
        reached |= {consumer for _, producer, consumer in channels(job) if producer in reached}
    behind = {consumer for _, producer, consumer in channels(job) if producer in reached}
    assert downstream_of(job, failed, view) == behind & view.started


def test_nothing_failed() -> None:
    """No failure, no restart."""
    job = graph([2, 2], [(0, 1)])
    assert restart_set(job, (), everything_done(job)) == frozenset()


def test_a_pipelined_region_runs_again_as_a_whole() -> None:
    """Finished or not: what a pipelined exchange held is gone. A subtask that has not started is left out."""
    job = graph([2, 2], [(0, 1)])
    view = View(started={(0, 0), (0, 1), (1, 0)}, finished={(0, 1)})
    assert restart_set(job, {(0, 0)}, view) == {(0, 0), (0, 1), (1, 0)}


def test_pointwise_exchanges_split_a_region() -> None:
    """Over forward exchanges only the partners of the failed subtask run again."""
    job = graph([3, 3, 3], [(0, 1), (1, 2)], "forward")
    assert restart_set(job, {(1, 2)}, everything_done(job)) == {(0, 2), (1, 2), (2, 2)}
    rescaled = graph([4, 2], [(0, 1)], "rescale")
    assert restart_set(rescaled, {(0, 1)}, everything_done(rescaled)) == {(0, 0), (0, 1), (1, 0)}


def test_a_dataframe_is_read_again_as_a_whole() -> None:
    """Spark may cut it in another way the next time."""
    job = graph([3, 1], [(0, 1)], blocking=frozenset({0}))
    job = job.with_vertex(replace(job.vertex(0), reads_dataframe=True))
    assert restart_set(job, {(0, 1)}, everything_done(job)) == {(0, 0), (0, 1), (0, 2)}


def test_only_the_producers_of_what_is_gone() -> None:
    """One lost partition among three: its producer, the failed consumer, and nobody else."""
    job = graph([3, 2], [(0, 1)], blocking=frozenset({0}))
    view = everything_done(job)
    view.finished -= {(1, 0), (1, 1)}
    assert restart_set(job, {(1, 0)}, view) == {(1, 0)}
    view.available -= {(0, 2)}
    assert restart_set(job, {(1, 0)}, view) == {(1, 0), (0, 2), (1, 1)}
    view.finished |= {(1, 1)}
    assert restart_set(job, {(1, 0)}, view) == {(1, 0), (0, 2)}
    view.finished -= {(1, 1)}
    view.announced -= {(0, 2)}
    assert restart_set(job, {(1, 0)}, view) == {(1, 0), (0, 2)}


def test_a_loss_goes_back_through_finished_stages() -> None:
    """Each stage whose output is gone asks for what it read; where that is there, it ends."""
    job = graph([1] * 4, [(0, 1), (1, 2), (2, 3)], blocking=frozenset({0, 1, 2}))
    view = everything_done(job)
    view.available = {(0, 0)}
    assert restart_set(job, {(3, 0)}, view) == {(1, 0), (2, 0), (3, 0)}


def test_the_cost_is_that_of_the_subtasks() -> None:
    """A million channels, a few thousand questions."""
    job = graph([1000, 1000, 1000], [(0, 1), (1, 2)], blocking=frozenset({0, 1}))
    view = everything_done(job)
    view.finished -= {(2, subtask) for subtask in range(1000)}
    view.available = set()
    assert len(restart_set(job, {(2, 5)}, view)) == 3000
    assert view.questions < 10_000
