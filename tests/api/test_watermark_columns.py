# SPDX-License-Identifier: Apache-2.0
"""A verb that drops rows by a watermark takes the watermark's own column, under whatever name, and refuses others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.api.lineage import SourceStep
from penstock.api.stream import Stream
from penstock.api.streaming.modes import in_mode
from penstock.api.watermark_columns import event_times
from penstock.api.windows import session_window, window
from penstock.errors import PlanError
from penstock.operators.groups import Side
from penstock.operators.join_sides import LEFT, RIGHT, AsSide, JoinedSides
from penstock.stream.chain import StepContext
from penstock.stream.stream_join import Between, StreamJoin
from penstock.stream.watermark import MOST, Watermark

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.int64()), ("ts", TIME), ("came", TIME), ("tags", pa.list_(pa.string()))])
OTHERS = pa.schema([("k", pa.int64()), ("paid", TIME), ("later", TIME)])


def rows(schema: pa.Schema = ROWS) -> Stream:
    """A stream without an end."""
    return Stream((SourceStep("rows", schema, streaming=True),))


def timed(schema: pa.Schema = ROWS, column: str = "ts") -> Stream:
    """The same with a watermark."""
    return rows(schema).withWatermark(column, "10 seconds")


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are, as far as anybody can see."""
    yield from batches


def joined(how: str = "inner", *columns: str, by: str = "paid") -> Stream:
    """Two streams with watermarks, joined within a bound."""
    left, right = timed().keyBy("k"), timed(OTHERS, by).keyBy("k")
    return left.join(right, how, between=(*(columns or ("ts", "paid")), "0 seconds", "1 hour"))


KEPT: dict[str, tuple[Callable[[], Stream], set[str]]] = {
    "as it is": (timed, {"ts"}),
    "renamed": (lambda: timed().withColumnRenamed("ts", "t"), {"t"}),
    "filters, lists, exchanges": (lambda: timed().filter(pc.field("k") > 1).rebalance().explode("tags"), {"ts"}),
    "first rows": (lambda: timed().dropDuplicates(["k"]).onTime("ts"), {"ts"}),
    "both of a union": (lambda: timed().union(timed().filter(pc.field("k") > 1)), {"ts"}),
    "a window": (lambda: timed().keyBy("k", window("ts", "1 minute")).count(), {"window"}),
    "a window of a session": (
        lambda: timed().keyBy("k", session_window("ts", "1 minute")).count().keyBy("k", "session_window").count(),
        {"session_window"},
    ),
    "an aggregation by it": (lambda: timed().keyBy("k", "ts").count(), {"ts"}),
    "a join with a bound": (joined, {"ts", "paid"}),
    "another watermark": (lambda: timed().withWatermark("came", "1 minute"), {"came"}),
    "replaced by another column": (lambda: timed().withColumn("ts", pc.field("came")), set()),
    "other names in a union": (lambda: timed().union(timed(ROWS, "came")), set()),
    "a function": (lambda: timed().mapInArrow(same, ROWS), set()),
    "the greatest time": (lambda: timed().keyBy("k").agg(ts=("ts", "max")), set()),
    "rows of any age": (lambda: timed().keyBy("k").top(2, "ts"), set()),
    "a join of any age": (lambda: timed().keyBy("k").join(timed(OTHERS, "paid").keyBy("k")), set()),
    "none": (rows, set()),
}


@pytest.mark.parametrize("case", KEPT)
def test_the_columns_that_have_the_watermarks_time(case: str) -> None:
    """They keep it through what gives their values on, and lose it in what makes others or gives old rows."""
    make, names = KEPT[case]
    found = event_times(make().branches)
    assert {name for name in found.delays if found.has(name)} == names
    assert bool(found.watermarks) is (case != "none")


def counted(stream: Stream, column: str, mode: str | None = None) -> object:
    """The plan of counts by windows of a column."""
    return in_mode(stream.keyBy("k", window(column, "1 hour")).count().branches, mode)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "windows of a replaced column": (
        lambda: counted(timed().withColumn("ts", pc.field("came")), "ts"),
        r"a window over 'ts' would go by withWatermark\(ts, 10 seconds\), which nothing here has after select",
    ),
    "windows of another column, updates": (
        lambda: counted(timed(), "came", "update"),
        "a window over 'came' would go by .*, which is 'ts' here",
    ),
    "windows of what a function made": (lambda: counted(timed().mapInArrow(same, ROWS), "ts"), "after mapInArrow"),
    "windows of an aggregate": (
        lambda: counted(timed().keyBy("k", window("ts", "1 minute")).agg(last=("ts", "max")), "last"),
        "a window over 'last' would go by .*, which is 'window' here",
    ),
    "windows after a join of any age": (
        lambda: counted(timed().keyBy("k").join(timed(OTHERS, "paid").keyBy("k")), "ts"),
        "after join by k",
    ),
    "a join's other time": (lambda: joined("inner", "came", "paid"), "a bound on 'came' would go by .* is 'ts' here"),
    "an outer join's other time": (lambda: joined("left", by="later"), "a bound on 'paid' would .* is 'later' here"),
    "late rows of another column": (lambda: timed().lateRows("came"), "lateRows by 'came' would go by .* 'ts' here"),
    "rows on time without a watermark": (lambda: rows().onTime("ts"), r"withWatermark\('ts', delay\) ahead of it"),
    "duplicates without the column": (
        lambda: timed().select("k").dropDuplicatesWithinWatermark(["k"]),
        r"the column of withWatermark\(ts, 10 seconds\) is not here any more",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_time_than_the_watermarks_is_refused_by_name(case: str) -> None:
    """With the watermark, what its column is called here, and what to write."""
    make, words = REFUSED[case]
    with pytest.raises(PlanError, match=words):
        make()


def test_windows_without_a_watermark_update_for_any_time() -> None:
    """Nothing is dropped then."""
    assert counted(rows(), "came", "update")


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_whose_times_have_no_watermark_keeps_its_rows(how: str) -> None:
    """However far the watermark of other times is, a pair within the bound comes; what meets nothing at the end."""
    sides = JoinedSides(Side(ROWS, ("k",)), Side(OTHERS, ("k",)), how)
    step = StreamJoin(sides, Between(("ts", "paid"), 0, 3_600_000_000)).step()
    step.open(StepContext(0, 1, 128, ""), [])

    def came(number: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [made for part in AsSide(sides, number).apply(iter([batch])) for made in step.process(part)]

    times = pa.array([0, 5], TIME)
    found = came(LEFT, pa.record_batch([pa.array([1, 2]), times, times, pa.nulls(2, ROWS.types[3])], schema=ROWS))
    found += step.on_watermark(Watermark(10**12))
    later = pa.array([60], TIME)
    found += came(RIGHT, pa.record_batch([pa.array([1]), later, later], schema=OTHERS))
    assert [made["k"].to_pylist() for made in found if made.num_rows] == [[1]]
    assert [made["k"].to_pylist() for made in step.on_watermark(Watermark(MOST))] == ([[2]] if how == "left" else [])
