# SPDX-License-Identifier: Apache-2.0
"""Whole streams without Spark: every verb over the in-memory service, against plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.plan import plan_job
from penstock.api.stream import Stream
from penstock.errors import JobError, PlanError, SchemaError, SlotsError
from penstock.operators.batch_by_batch import BatchByBatch, EachBatch
from penstock.settings import Settings
from penstock.testing.local_runner import LocalRunner, run_local
from penstock.testing.sources import fromBatches

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
ROWS = pa.table({"k": [f"w{n % 13}" for n in range(5000)], "v": range(5000)}, SCHEMA)

rows_of_all = st.lists(
    st.fixed_dictionaries(
        {"k": st.sampled_from(["", "a", "b", None]), "v": st.one_of(st.none(), st.integers(-9, 9))}
    ),
    max_size=30,
)


def source(rows: pa.Table = ROWS, partitions: int = 3, size: int = 300) -> Stream:
    """A stream of a table in several partitions and small batches."""
    return fromBatches(pa.Table.from_batches(rows.to_batches(max_chunksize=size), rows.schema), partitions)


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows without their order."""
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Twice the number, computed batch by batch."""
    for batch in batches:
        values = pa.array([None if v is None else 2 * v for v in batch.column("v").to_pylist()], pa.int64())
        yield pa.record_batch([batch.column("k"), values], ["k", "v"])


def by_first_column(batch: pa.RecordBatch) -> Any:
    """A custom partitioner: v modulo 3."""
    return np.array([(v or 0) % 3 for v in batch.column("v").to_pylist()], np.int64)


EXCHANGES = {
    "rebalance": lambda s: s.rebalance(3),
    "rescale up": lambda s: s.rescale(5),
    "rescale down": lambda s: s.rescale(1),
    "random": lambda s: s.random(4),
    "toOne": lambda s: s.toOne(),
    "keyBy": lambda s: s.keyBy("k", numPartitions=4),
    "keyBy both": lambda s: s.keyBy("k", "v"),
    "keyBy nothing": lambda s: s.keyBy(),
    "partitionCustom": lambda s: s.partitionCustom(by_first_column, 3),
    "three in a row": lambda s: s.rebalance(2).keyBy("k", numPartitions=2).rescale(1),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_every_exchange_gives_every_row_once(name: str) -> None:
    """Rows before and after are the same, with a function on either side."""
    stream = EXCHANGES[name](source().mapInArrow(doubled, SCHEMA)).mapInArrow(doubled, SCHEMA)
    assert bag(run_local(stream)) == Counter((row["k"], 4 * row["v"]) for row in ROWS.to_pylist())


def test_broadcast_gives_every_consumer_every_row() -> None:
    """Each of three consumers has all rows."""
    result = LocalRunner().run(source().broadcast(3))
    tables = [pa.Table.from_batches(part, SCHEMA) for part in result.partitions]
    assert [bag(table) for table in tables] == [bag(ROWS)] * 3


def test_keys_meet_in_one_partition() -> None:
    """After keyBy no key is in two partitions; after partitionCustom each row is where the function said."""
    parts = LocalRunner().run(source().keyBy("k", numPartitions=4)).partitions
    homes = [{key for batch in part for key in batch.column("k").to_pylist()} for part in parts]
    assert sum(map(len, homes)) == 13
    parts = LocalRunner().run(source().partitionCustom(by_first_column, 3)).partitions
    for number, part in enumerate(parts):
        assert all(v % 3 == number for batch in part for v in batch.column("v").to_pylist())


def test_order_is_kept_from_one_producer_to_one_consumer() -> None:
    """With one task on each side, rows arrive as they were sent."""
    assert run_local(source(partitions=1).rebalance(1)).column("v").to_pylist() == list(range(5000))


@settings(deadline=None, max_examples=25)
@given(rows_of_all, st.integers(1, 3), st.integers(1, 9))
def test_aggregation_of_any_rows(rows: list[dict[str, Any]], partitions: int, size: int) -> None:
    """Agg over any rows, spread in any way, is what a dictionary computes."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    found = run_local(
        source(table, partitions, size).groupBy("k").agg(n=("*", "count"), s=("v", "sum"), m=("v", "max"))
    )
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(row["k"], []).append(row["v"])
    expected = Counter()
    for key, values in groups.items():
        valid = [value for value in values if value is not None]
        expected[key, len(values), sum(valid) if valid else None, max(valid, default=None)] += 1
    assert bag(found) == expected


@settings(deadline=None, max_examples=25)
@given(rows_of_all, st.integers(1, 3), st.integers(1, 9))
def test_group_functions_of_any_rows(rows: list[dict[str, Any]], partitions: int, size: int) -> None:
    """ApplyInArrow sees each group whole, once."""
    table = pa.Table.from_pylist(rows, SCHEMA)

    def whole(key: Any, group: pa.Table) -> pa.Table:
        values = sorted(str(value) for value in group["v"].to_pylist())
        return pa.table({"k": pa.array([key[0].as_py()], pa.string()), "all": [",".join(values)]})

    found = run_local(source(table, partitions, size).groupBy("k").applyInArrow(whole, "k string, all string"))
    groups: dict[Any, list[str]] = {}
    for row in rows:
        groups.setdefault(row["k"], []).append(str(row["v"]))
    assert bag(found) == Counter((key, ",".join(sorted(values))) for key, values in groups.items())


def test_pandas_functions() -> None:
    """MapInPandas and applyInPandas over frames."""

    def longer(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            frame["v"] = frame["v"] + 1
            yield frame

    def largest(frame: Any) -> Any:
        return frame.nlargest(1, "v")

    found = run_local(source().mapInPandas(longer, SCHEMA).groupBy("k").applyInPandas(largest, SCHEMA))
    expected: dict[str, int] = {}
    for row in ROWS.to_pylist():
        expected[row["k"]] = row["v"] + 1
    assert bag(found) == Counter(expected.items())


def test_aggregation_over_all_rows() -> None:
    """toOne().agg and groupBy().agg are over all rows, and give one row even for none."""
    for stream in (source().toOne(), source().groupBy()):
        assert run_local(stream.agg(n=("v", "count"), s=("v", "sum"))).to_pylist() == [{"n": 5000, "s": 12497500}]
    empty = source(ROWS.slice(0, 0), 1)
    assert run_local(empty.groupBy().agg(n=("v", "count"), s=("v", "sum"))).to_pylist() == [{"n": 0, "s": None}]
    assert run_local(empty.groupBy("k").agg(n=("v", "count"))).num_rows == 0


def test_one_stream_feeds_several_edges() -> None:
    """A shared stage runs once, and both of its readers see all of its rows."""
    calls = []

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        calls.append(1)
        yield from batches

    shared = source(partitions=1).mapInArrow(counted, SCHEMA)
    left = shared.groupBy("k", numPartitions=2).agg(n=("v", "count"))
    right = shared.rebalance(2).mapInArrow(_keys_with_one, "k string, n long")
    found = bag(run_local(left.union(right)))
    assert len(calls) == 1
    assert sum(count for (_, n), count in found.items() if n == 1) == 5000
    assert sum(n for (_, n), count in found.items() if n > 1) == 5000


def _keys_with_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch([batch.column("k"), pa.array([1] * batch.num_rows, pa.int64())], ["k", "n"])


def test_union() -> None:
    """A union has all rows of its branches, before and after an exchange."""
    twice = Counter(dict.fromkeys(bag(ROWS), 2))
    assert bag(run_local(source().union(source()))) == twice
    assert bag(run_local(source().union(source()).keyBy("k", numPartitions=2))) == twice


def test_a_union_has_the_nulls_of_all_branches() -> None:
    """A branch that promises no nulls, also inside others, meets one that has some: in every order, and by name."""
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    strict = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("s", inner, nullable=False)])
    loose = pa.schema([("k", pa.int64()), ("s", pa.struct([("x", pa.int64())]))])
    one = pa.table({"k": [1, 2], "s": [{"x": 1}, {"x": 2}]}, strict)
    other = pa.table({"k": [None, 3], "s": [{"x": None}, None]}, loose)
    expected = Counter(map(str, [*one.to_pylist(), *other.to_pylist()]))
    for streams in ((one, other), (other, one)):
        left, right = map(source, streams)
        for both in (left.union(right), left.unionByName(right.select("s", "k"))):
            assert both.schema == loose
            assert Counter(map(str, run_local(both.rebalance(2)).to_pylist())) == expected
        nothing = pc.field("k").is_null() | pc.struct_field(pc.field("s"), [0]).is_null()
        assert run_local(left.union(right).filter(nothing)).num_rows == 2
    again = source(one).union(source(one), source(other))
    assert len(run_local(again.keyBy("k", numPartitions=3).count())) == 4


@pytest.mark.parametrize("mode", [None, "hybrid", "hybrid_selective", "blocking"])
def test_a_diamond_that_ends_in_a_union(mode: str | None) -> None:
    """Both branches of one stage meet again, with far more batches than an exchange holds."""
    shared = source(size=20).mapInArrow(doubled, SCHEMA)
    left = shared.rebalance(2, mode=mode).mapInArrow(doubled, SCHEMA)
    both = left.union(shared.keyBy("k", numPartitions=2, mode=mode)).rebalance(1)
    expected = Counter((row["k"], factor * row["v"]) for row in ROWS.to_pylist() for factor in (2, 4))
    assert bag(run_local(both)) == expected


def test_more_stages_than_slots() -> None:
    """Auto goes over to hybrid exchanges, and the rows are the same."""
    stream = source().keyBy("k", numPartitions=4).rebalance(4).keyBy("v", numPartitions=4)
    assert bag(run_local(stream, slots=4)) == bag(ROWS)


def test_zero_columns_keep_their_rows() -> None:
    """Rows without columns are counted through exchanges."""

    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select([])

    result = LocalRunner().run(source().mapInArrow(nothing, pa.schema([])).rebalance(2))
    assert sum(batch.num_rows for part in result.partitions for batch in part) == 5000


def test_consumers_may_end_early() -> None:
    """Consumers that read one batch, or nothing, end the job well: producers do not hang."""

    def one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)

    def none(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter([])

    large = pa.Table.from_batches([ROWS.to_batches()[0]] * 60)
    assert 0 < run_local(source(large, 2, 5000).rebalance(2).mapInArrow(one, SCHEMA)).num_rows < large.num_rows
    assert run_local(source(large, 2, 5000).rebalance(2).mapInArrow(none, SCHEMA)).num_rows == 0


@pytest.mark.parametrize("mode", ["pipelined", "hybrid", "hybrid_selective"])
def test_a_stage_without_an_end_is_stopped_when_nobody_wants_its_rows(mode: str) -> None:
    """After a limit, and after a keyed task that never gets a row of it; its generators are closed."""
    closed = []

    def without_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept = next(batches).slice(0, 1)
        try:
            while True:
                yield pa.concat_batches([kept] * 100)
        finally:
            closed.append(kept)

    endless = source(partitions=2).mapInArrow(without_end, SCHEMA)
    keyed = endless.keyBy("k", numPartitions=2, mode=mode).mapInArrow(lambda batches: batches, SCHEMA)
    assert run_local(keyed.limit(7)).num_rows == 7
    assert len(closed) == 2


def test_an_empty_side_of_a_join_stops_the_other() -> None:
    """Whichever of the two is empty."""

    def without_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept = list(batches)
        while True:
            yield from kept

    endless = (
        source(partitions=2).mapInArrow(without_end, SCHEMA).withColumnRenamed("v", "w").keyBy("k", numPartitions=2)
    )
    empty = source(ROWS.slice(0, 0), 2).keyBy("k", numPartitions=2)
    assert run_local(endless.join(empty)).num_rows == 0
    assert run_local(empty.join(endless)).num_rows == 0


@pytest.mark.parametrize("where", ["source", "middle", "sink"])
def test_failures_come_out_with_their_cause(where: str) -> None:
    """Wherever a function raises, the error holds its traceback, and the original exception is the cause."""

    def boom(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise LookupError(f"bad row in {batch.num_rows} rows")
            yield

    def at(place: str) -> Any:
        return boom if place == where else doubled

    stream = source().mapInArrow(at("source"), SCHEMA).rebalance(2).mapInArrow(at("middle"), SCHEMA)
    with pytest.raises(
        JobError, match=r"in boom[\s\S]*LookupError: bad row[\s\S]*raised in mapInArrow\(boom\)"
    ) as caught:
        run_local(stream.keyBy("k", numPartitions=2).mapInArrow(at("sink"), SCHEMA))
    assert isinstance(caught.value.__cause__, LookupError)
    assert "penstock/task" not in str(caught.value)
    assert "penstock/operators" not in str(caught.value)


def test_wrong_output_is_refused_while_running() -> None:
    """A function whose output does not fit its declared schema fails the job with a SchemaError as cause."""
    with pytest.raises(JobError, match="column 'v' is declared string and the function returned int64") as caught:
        run_local(source().rebalance(2).mapInArrow(doubled, "k string, v string"))
    assert isinstance(caught.value.__cause__, SchemaError)


def test_a_bad_custom_partitioner_fails_the_job() -> None:
    """A partition number out of range is the SchemaError of the partitioner."""
    with pytest.raises(JobError, match="must be 0 to 1"):
        run_local(source().partitionCustom(by_first_column, 2))


def test_limits_of_the_local_runner() -> None:
    """More tasks than slots, and DataFrames, are refused."""
    with pytest.raises(SlotsError, match="needs 9 task slots and the local runner has 8"):
        run_local(source(partitions=1).rebalance(8, mode="pipelined"))
    assert run_local(source(partitions=1).rebalance(8)).num_rows == 5000
    from penstock.api.lineage import SourceStep

    with pytest.raises(PlanError, match="needs Spark"):
        run_local(Stream((SourceStep("DataFrame", SCHEMA, dataframe=object()),)))


def test_metrics_count_rows() -> None:
    """Each subtask's figures are there, and rows in and out add up over the exchange."""
    metrics = LocalRunner().run(source(partitions=2).rebalance(3)).metrics
    assert len(metrics) == 5
    assert sum(figures["rows_out"] for (vertex, _), figures in metrics.items() if vertex == 0) == 5000
    assert sum(figures["rows_in"] for (vertex, _), figures in metrics.items() if vertex == 1) == 5000
    assert all(figures["seconds"] > 0 for figures in metrics.values())


def test_hundreds_of_verbs_and_functions_in_a_stage() -> None:
    """They nest no calls beyond Python's limit: verbs are one loop, and other stages go on after many functions."""
    verbs = functions = source()
    for _ in range(600):
        verbs = verbs.select("v", "k") if verbs.schema.names[0] == "k" else verbs.select("k", "v")
    for _ in range(120):
        functions = functions.mapInArrow(lambda batches: batches, SCHEMA)
    assert bag(run_local(verbs)) == bag(run_local(functions)) == bag(ROWS)
    assert len(plan_job(functions.branches, Settings(), 8).graph.vertices) == 3


class Quotient(BatchByBatch):
    """Divides by nothing."""

    name = "quotient"

    def each(self) -> EachBatch:
        """An error."""
        return lambda batch: (batch.slice(1 // 0) for _ in range(1))


def test_the_verb_of_a_loop_that_fails_is_named() -> None:
    """It is the one that raised, not its neighbours."""
    with pytest.raises(JobError, match="raised in quotient of"):
        run_local(source().select("v", "k").applied(Quotient(), SCHEMA).select("v"))
