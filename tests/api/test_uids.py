# SPDX-License-Identifier: Apache-2.0
"""The names of a query's stages in its checkpoints: by what they read, not by their places in the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock
from penstock.api.stream import Stream
from penstock.api.streaming.writer import query_graph, query_options
from penstock.errors import PlanError, SettingError
from penstock.graph import JobGraph
from penstock.graph.restoring import refuse_other_sources
from penstock.graph.streaming import SavedParts
from penstock.settings import Settings, StreamingSettings
from penstock.stream.noop import NoopSink
from penstock.stream.partitioned_source import PartitionedSource
from penstock.stream.sources import sources_of

OPTIONS = query_options("id", "counts", "/nowhere", StreamingSettings())
WHERE = "the checkpoint at /there"


def planned(stream: Stream, *, is_kept: bool = True) -> JobGraph:
    """The job of a query that drops these rows."""
    return query_graph(stream.branches, NoopSink(), Settings(), 12, OPTIONS, is_kept=is_kept)


def rate(partitions: int = 1, **options: object) -> Stream:
    """Rows that are made up."""
    return penstock.readStream(None).format("rate").options(numPartitions=partitions, **options).load()


def text(folder: Path) -> Stream:
    """Lines of files."""
    folder.mkdir(exist_ok=True)
    return penstock.readStream(None).text(str(folder))


def by_name(graph: JobGraph) -> dict[str, str]:
    """The uid of each stage, by its name."""
    return {vertex.name: vertex.uid for vertex in graph.vertices}


def saved(graph: JobGraph, finished: Sequence[str] = ()) -> SavedParts:
    """A checkpoint of this plan."""
    widths = {vertex.uid: vertex.parallelism for vertex in graph.vertices}
    return SavedParts(7, {}, frozenset(finished), widths, sources=sources_of(graph))


class Orders:
    """Partitions of a user; nothing is read of them here."""

    schema = pa.schema([("value", pa.string())])

    def __init__(self, name: str | None = None, partitions: Sequence[str] = ("0", "1")) -> None:
        if name is not None:
            self.name = name
        self._partitions = partitions

    def partitions(self) -> Sequence[str]:
        """Their names."""
        return self._partitions

    def read(self, partition: str, offset: Any) -> Iterator[tuple[pa.RecordBatch | None, Any]]:
        """Nothing."""
        yield from ()


def orders(name: str | None = None, partitions: Sequence[str] = ("0", "1")) -> Stream:
    """A user's source."""
    return penstock.readStream(None).format(PartitionedSource(Orders(name, partitions))).load()  # type: ignore[arg-type]


def test_order_of_a_union_does_not_matter(tmp_path: Path) -> None:
    """Sources, the steps after them, and the stage that reads the union are called as before."""
    a, b, c = text(tmp_path / "a"), text(tmp_path / "b"), orders("c")
    one, other = (planned(s.keyBy("value").count()) for s in (a.union(b).union(c), c.union(b.union(a))))
    assert by_name(one) == by_name(other)
    assert len(set(by_name(one).values())) == len(one.vertices)


def test_another_folder_under_the_checkpoint_of_the_first_is_refused_by_name(tmp_path: Path) -> None:
    """Its files may have the same names, and would be left out."""
    first, second = planned(text(tmp_path / "a")), planned(text(tmp_path / "b"))
    with pytest.raises(PlanError, match=r"how far the query was in text files of .*/a .*instead: text files of .*/b"):
        refuse_other_sources(saved(first), sources_of(second), WHERE)
    refuse_other_sources(saved(first), sources_of(planned(text(tmp_path / "a"))), WHERE)


def test_another_folder_under_the_same_uid_is_refused_by_name(tmp_path: Path) -> None:
    """A name says whose state it is; what the state is of stays the same."""
    first, second = (planned(text(tmp_path / name).uid("lines")) for name in "ab")
    assert [vertex.uid for vertex in first.vertices] == ["lines"]
    with pytest.raises(
        PlanError, match=r"source 'lines' was in text files of .*/a, and now it reads text files of .*/b"
    ):
        refuse_other_sources(saved(first), sources_of(second), WHERE)


def test_checkpoint_that_does_not_say_what_was_read_is_refused(tmp_path: Path) -> None:
    """One of an earlier version."""
    graph = planned(text(tmp_path / "a"))
    with pytest.raises(PlanError, match="of an earlier version of Penstock"):
        refuse_other_sources(SavedParts(7, {}), sources_of(graph), WHERE)


def test_partitions_that_come_and_go() -> None:
    """New ones may come, unless tasks of the source had ended; none may go."""
    now = planned(orders("a", ("0", "1")))
    (uid,) = (vertex.uid for vertex in now.vertices)
    refuse_other_sources(saved(now), sources_of(planned(orders("a", ("2", "0", "1")))), WHERE)
    with pytest.raises(PlanError, match=r"partitions of Orders a was in partition '1', which is not among 0"):
        refuse_other_sources(saved(now), sources_of(planned(orders("a", ("0",)))), WHERE)
    with pytest.raises(PlanError, match=r"Orders a has the new partition '2', and tasks of it had read"):
        refuse_other_sources(saved(now, [f"{uid}.0"]), sources_of(planned(orders("a", ("0", "1", "2")))), WHERE)


def test_sources_that_read_the_same_are_told_apart_by_what_follows() -> None:
    """In any order; where nothing tells them apart a query that keeps its checkpoints asks for names."""
    low, high = (rate().filter(pc.field("value") > bound) for bound in (3, 5))
    one, other = (planned(s.keyBy("value").count()) for s in (low.union(high), high.union(low)))
    assert by_name(one) == by_name(other)
    assert len(set(by_name(one).values())) == len(one.vertices)
    with pytest.raises(PlanError, match=r"two stages .* 'rate.*stream\.uid"):
        planned(rate().union(rate()))
    planned(rate().union(rate()), is_kept=False)
    named = planned(rate().uid("one").union(rate().uid("two")))
    assert {"one", "two"} < {vertex.uid for vertex in named.vertices}
    with pytest.raises(PlanError, match="two stages"):
        planned(orders().union(orders()))
    planned(orders("a").union(orders("b")))


def test_names_of_stages_behind_an_exchange() -> None:
    """The stage keeps its name whatever stands in front of it; its readers are called by it."""
    plain = planned(rate().keyBy("value").count().uid("counts").rebalance())
    other = planned(rate(2).keyBy("timestamp", "value").count().uid("counts").rebalance())
    uids = [[vertex.uid for vertex in graph.vertices] for graph in (plain, other)]
    assert uids[0][1] == uids[1][1] == "counts"
    assert uids[0][2] == uids[1][2]
    assert uids[0][0] != uids[1][0]


def test_names_that_are_refused() -> None:
    """Two of one stage, one of two stages, of a union, of a batch job, and what can't name files."""
    with pytest.raises(PlanError, match="one stage and cannot be called 'a' and 'b'"):
        planned(rate().uid("a").filter(pc.field("value") > 3).uid("b"))
    with pytest.raises(PlanError, match="name of two stages"):
        planned(rate().uid("a").union(rate().uid("a")))
    with pytest.raises(PlanError, match="a union has several"):
        rate().union(rate()).uid("a")
    with pytest.raises(SettingError, match="letters, digits"):
        rate().uid("a/b")
