# SPDX-License-Identifier: Apache-2.0
"""The everyday verbs, run in this process without Spark: conditions and columns as Arrow's expressions."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.api.stream import Stream
from penstock.errors import PlanError, SchemaError
from penstock.graph import explain_graph
from penstock.graph.spark_types import with_spark_type
from penstock.operators.expressions import ValuesError
from penstock.operators.expressions.portions import Portions
from penstock.operators.verbs import Explode
from penstock.settings import Settings
from penstock.testing.local_runner import LocalRunner, run_local
from penstock.testing.sources import fromBatches

TABLE = pa.table(
    {
        "k": ["a", "b", "a", None, "c", "b"],
        "v": pa.array([1, 2, 3, 4, None, 2], pa.int64()),
        "items": pa.array([[1, 2], [], None, [3], [4, None], [5]], pa.list_(pa.int32())),
    }
)


def stream(partitions: int = 2) -> Stream:
    """The table, in as many batches as partitions."""
    batches = TABLE.to_batches(max_chunksize=2)
    return fromBatches(pa.Table.from_batches(batches), partitions)


def rows(made: Stream) -> list[tuple[object, ...]]:
    """All rows, in an order of their own."""
    found = run_local(made)
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=repr)


def test_narrow_verbs_need_no_exchange() -> None:
    """Filter, select, new, renamed and dropped columns and explode are operators of the one stage there is."""
    made = (
        stream()
        .filter(pc.field("v") > 1)
        .withColumn("w", pc.field("v") * 2)
        .withColumnRenamed("k", "key")
        .explode("items")
        .drop("v", "nothing")
        .select("key", "w", "items")
    )
    graph = made.plan(Settings(), 8).graph
    assert len(graph.vertices) == 1
    assert made.columns == ["key", "w", "items"]
    assert made.schema.types == [pa.string(), pa.int64(), pa.int32()]
    assert rows(made) == [("b", 4, 5), (None, 8, 3)]
    assert "select(" in explain_graph(graph)


def test_a_null_condition_keeps_no_row() -> None:
    """A filter keeps rows for which the condition is true, not those for which it is null."""
    assert sorted(row[1] for row in rows(stream().where(pc.field("v") < 3).select("k", "v"))) == [1, 2, 2]


def test_columns_are_replaced_where_they_are() -> None:
    """WithColumns adds at the end and replaces in place; all of it is computed of the rows as they were."""
    made = stream().withColumns({"v": pc.field("v") + 10, "u": pc.field("v")})
    assert made.columns == ["k", "v", "items", "u"]
    assert [(v, u) for _, v, _, u in rows(made) if u is not None] == [(11, 1), (13, 3), (12, 2), (12, 2), (14, 4)]


def test_explode_outer_keeps_rows_without_elements() -> None:
    """Rows with an empty or no list stay with null; elements keep their order and their nulls."""
    made = stream(1).explode("items", outer=True)
    assert run_local(made).column("items").to_pylist() == [1, 2, None, None, 3, 4, None, 5]
    assert run_local(stream(1).explode("items")).column("items").to_pylist() == [1, 2, 3, 4, None, 5]


def test_distinct_rows() -> None:
    """Each row once, nulls equal to each other."""
    assert rows(stream().select("k").distinct()) == [("a",), ("b",), ("c",), (None,)]
    assert len(rows(stream().select("k", "v").distinct())) == 5


def test_duplicates_by_nothing_are_all_rows() -> None:
    """As in Spark: one row is left, and none of none."""
    assert len(rows(stream().dropDuplicates([]))) == 1
    assert rows(stream().filter(pc.field("v") > 100).dropDuplicates([])) == []


def test_one_row_of_each_key_stays_whole() -> None:
    """DropDuplicates gives one of the rows there are, not a mixture, with columns of any type in their order."""
    made = stream().dropDuplicates(["k"])
    assert made.columns == ["k", "v", "items"]
    found = rows(made)
    assert sorted((row[0] for row in found), key=repr) == ["a", "b", "c", None]
    assert all(row in rows(stream()) for row in found)
    both = stream().select("k", "v").dropDuplicates(["v", "k"])
    assert both.columns == ["k", "v"], "all columns in another order change none"
    assert len(rows(both)) == 5


@pytest.mark.parametrize("partitions", [1, 3])
def test_limit_gives_so_many_rows(partitions: int) -> None:
    """Any rows of an unsorted stream, and all where there are fewer."""
    assert len(rows(stream(partitions).limit(4))) == 4
    assert len(rows(stream(partitions).limit(40))) == 6
    assert rows(stream(partitions).limit(0)) == []


def test_a_limit_ends_its_producers() -> None:
    """Each task stops reading once it has given its rows: of a thousand batches a few are read."""
    batches = [pa.RecordBatch.from_pydict({"n": list(range(start, start + 10))}) for start in range(0, 10_000, 10)]
    result = LocalRunner().run(fromBatches(batches, 1).limit(25))
    assert result.table().num_rows == 25
    assert result.metrics[0, 0]["rows_in"] <= 30


def test_the_first_rows_of_a_sorted_stream() -> None:
    """Limit after sortBy gives the first ones in order, through a filter and a select that keep the key."""
    ordered = stream().select("k", "v").sortBy("v", ascending=False, numPartitions=2)
    assert run_local(ordered.limit(3)).column("v").to_pylist() == [4, 3, 2]
    through = ordered.filter(pc.field("v") < 4).select("v").limit(2)
    assert run_local(through).column("v").to_pylist() == [3, 2]
    with pytest.raises(PlanError, match=r"sorted by 'v'.*directly after sortBy"):
        ordered.drop("v").limit(2)


def test_the_first_rows_of_a_sorted_stream_with_other_columns() -> None:
    """The order is that of the sort: columns computed after it do not matter, and a key that is one is refused."""
    ordered = stream(3).sortBy("v", nulls="last", numPartitions=3)
    assert run_local(ordered.withColumn("k", pc.add(pc.field("v"), 1)).limit(3)).column("v").to_pylist() == [1, 2, 2]
    assert run_local(ordered.explode("items", outer=True).limit(2)).column("items").to_pylist() == [1, 2]
    renamed = ordered.withColumnsRenamed({"v": "w", "k": "v"})
    for changed in (ordered.withColumn("v", pc.negate(pc.field("v"))), renamed):
        with pytest.raises(PlanError, match=r"sorted by 'v'.*directly after sortBy"):
            changed.limit(3)


LAYOUTS = [
    (pa.string(), [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ["x", None]),
    (pa.binary(), [pa.large_binary(), pa.binary_view()], [b"x", None]),
    (pa.timestamp("us", "UTC"), [pa.timestamp("ms", "Europe/Paris"), pa.timestamp("s", "UTC")], [0, None]),
    (pa.list_(pa.string()), [pa.large_list(pa.large_string()), pa.list_view(pa.string())], [["x"], None]),
]
"""Spark's layout of a type, others of it, and values."""


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_a_declared_layout_is_no_type_of_its_own(number: int) -> None:
    """Streams of functions that declare and return other layouts meet in unions, joins, cogroups and filters."""
    plain, others, values = LAYOUTS[number]
    ids = fromBatches([pa.record_batch({"k": range(len(values))})])

    def made(kind: pa.DataType) -> Stream:
        schema = pa.schema([("k", pa.int64()), ("v", kind)])
        column = pa.array(values, plain if pa.types.is_timestamp(plain) else kind)
        column = column.cast(kind) if pa.types.is_timestamp(plain) else column
        return ids.mapInArrow(
            lambda batches: (pa.RecordBatch.from_arrays([each["k"], column], schema=schema) for each in batches),
            schema,
        )

    streams = [made(kind) for kind in (plain, *others)]
    assert {stream.schema.field("v").type for stream in streams} == {plain}
    kept = streams[1].filter(pc.field("v").is_valid()).withColumnRenamed("k", "j")
    if not pa.types.is_nested(plain):
        met = streams[0].keyBy("v").join(kept.keyBy("v"), on=["v"])
        assert run_local(met).select(["v", "k", "j"]).to_pydict() == {
            "v": pa.array(values, plain).to_pylist()[:1], "k": [0], "j": [0],
        }  # fmt: skip
        groups = streams[0].keyBy("v").cogroup(streams[-1].keyBy("v"))
        sizes = groups.applyInArrow(
            lambda one, other: pa.table({"n": [one.num_rows], "m": [other.num_rows]}), "n long, m long"
        )
        assert run_local(sizes).to_pylist() == [{"n": 1, "m": 1}] * 2
    together = run_local(streams[0].union(*(made(kind) for kind in others)))
    assert sorted(map(str, together["v"].to_pylist())) == sorted(
        str(value) for value in pa.array(values, plain).to_pylist() * len(streams)
    )


def test_union_by_name() -> None:
    """Columns are brought to the left's order; one that a side lacks is null there if that is allowed."""
    left = stream().select("k", "v")
    right = stream().select("v", "k")
    assert len(rows(left.unionByName(right))) == 12
    more = right.withColumn("w", pc.field("v"))
    with pytest.raises(SchemaError, match="this stream has no 'w': with allowMissingColumns=True"):
        left.unionByName(more)
    made = left.unionByName(more, allowMissingColumns=True)
    assert made.columns == ["k", "v", "w"]
    assert [row[2] for row in rows(made)].count(None) == 7


def test_union_by_name_needs_no_session_for_fields_inside() -> None:
    """Slices of batches and nulls of lists and structs keep their places."""
    one = pa.table({"v": [[{"a": 1, "b": 2}], None]})
    other = pa.table({"v": [[{"B": 9, "A": 9}], None, [], [{"B": 20, "A": 10}, None]]}).slice(1)
    made = run_local(fromBatches(one).unionByName(fromBatches(other)))
    assert made["v"].to_pylist() == [[{"a": 1, "b": 2}], None, None, [], [{"a": 10, "b": 20}, None]]


def test_a_union_of_three_knows_sparks_types() -> None:
    """The second stream meets the first as it does the third, but for what Spark calls the type of its column."""
    plain = pa.table({"v": pa.array([1], pa.duration("us"))})
    hours = plain.cast(pa.schema([with_spark_type(plain.schema.field("v"), "interval hour")]))
    with pytest.raises(SchemaError, match="interval hour"):
        fromBatches(plain).union(fromBatches(hours))
    with pytest.raises(SchemaError, match="interval hour"):
        fromBatches(plain).union(fromBatches(plain), fromBatches(hours))


def test_groups_in_pysparks_forms() -> None:
    """Counts of groups, a dictionary, and one function of named or of all numeric columns."""
    grouped = stream().groupBy("k")
    assert grouped.count().columns == ["k", "count"]
    assert rows(grouped.count()) == [("a", 2), ("b", 2), ("c", 1), (None, 1)]
    assert grouped.agg({"v": "sum", "*": "count"}).columns == ["k", "sum(v)", "count(1)"]
    assert grouped.max().columns == ["k", "max(v)"]
    assert rows(grouped.sum("v")) == [("a", 4), ("b", 4), ("c", None), (None, 4)]


def test_a_stream_shows_its_columns() -> None:
    """The repr has names and types."""
    assert repr(stream().select("k", "v")) == "Stream[k: string, v: int64]"
    assert repr(stream().keyBy("k").sum("v")) == "Stream[k: string, sum(v): int64]"


def test_plans_show_no_internals() -> None:
    """Sorted keys, places and the states of aggregates are shown as what they stand for."""
    ordered = stream().keyBy("k").agg(total=("v", "sum"), mean=("v", "avg")).sortBy("total", numPartitions=2)
    text = explain_graph(ordered.plan(Settings(), 8).graph)
    assert "#" not in text
    assert "output: (k: string, partial total, partial mean)" in text
    assert "0: int64" not in text


def test_sql_needs_a_session() -> None:
    """Without Spark nobody reads SQL, and the sentence says what does without."""
    with pytest.raises(PlanError, match=r"'v > 1' is read by Spark's analyser.*pc.field"):
        stream().filter("v > 1")


WRONG = {
    "a condition that is none": (lambda s: s.filter(pc.field("v") + 1), SchemaError, "is boolean"),
    "an unknown column of Arrow's": (lambda s: s.filter(pc.field("nope") > 1), SchemaError, "columns are k string"),
    "a filter by a number": (lambda s: s.filter(5), TypeError, "a SQL string, a pyspark Column or"),
    "a column twice": (lambda s: s.select("k", "k"), SchemaError, "'k' would be in the result twice"),
    "nothing selected": (lambda s: s.select(), PlanError, "at least one column"),
    "a renaming that collides": (lambda s: s.withColumnRenamed("k", "v"), SchemaError, "'v' would be"),
    "explode of no list": (lambda s: s.explode("v"), SchemaError, "'v' of type int64 is no list"),
    "explode of no column": (lambda s: s.explode("nope"), SchemaError, "the columns are k, v, items"),
    "a limit that is no number": (lambda s: s.limit("5"), TypeError, "whole number"),
    "a negative limit": (lambda s: s.limit(-1), PlanError, "negative"),
    "duplicates by no column": (lambda s: s.dropDuplicates(["nope"]), SchemaError, "'nope' does not exist"),
    "distinct lists": (lambda s: s.distinct(), SchemaError, "'items' of type"),
    "an action without a session": (lambda s: s.count(), PlanError, "count needs a Spark session"),
    "agg of a number": (lambda s: s.groupBy("k").agg(5), TypeError, "agg takes name="),
    "a sum of nothing": (lambda s: s.select("k").groupBy("k").sum(), PlanError, "no numeric column"),
    "write": (lambda s: s.write, AttributeError, r"\.writeParquet\(path\)"),
    "cache": (lambda s: s.cache(), AttributeError, r"\.persist\(\)"),
    "orderBy": (lambda s: s.orderBy("k"), AttributeError, r"\.sortBy\("),
    "join without keys": (lambda s: s.join(s, "k"), AttributeError, r"left.keyBy\('k'\).join"),
    "agg without groups": (lambda s: s.agg(n=("v", "sum")), AttributeError, r"\.toOne\(\)\.agg"),
    "a column as an attribute": (lambda s: s.v, AttributeError, "there is a column of that name"),
    "any other name": (
        lambda s: s.nonsense,
        AttributeError,
        "a Stream has no 'nonsense': its verbs are in",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_get_a_sentence(name: str) -> None:
    """A mistake is named at its verb, with the names that exist or the words to write instead."""
    call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        call(stream())


def test_explode_makes_pieces_of_bounded_size() -> None:
    """A long text beside many elements is more than Arrow gathers at once: batches are small."""
    rows = pa.record_batch({"items": [list(range(60)), None, [], [7]] * 10, "text": ["x" * (1 << 20)] * 40})
    for outer, count in ((False, 610), (True, 630)):
        explode = Explode("items", outer, pa.schema([("items", pa.int64()), ("text", pa.string())]))
        sizes, items = [], []
        for _ in range(4):
            for batch in explode.apply(iter([rows])):
                sizes.append(batch.nbytes)
                items += batch["items"].to_pylist()
        alone = [None, None] if outer else []
        assert items == [*range(60), *alone, 7] * 40
        assert len(items) == 4 * count
        assert max(sizes) <= 33 << 20


@pytest.mark.parametrize("outer", [True, False])
def test_explode_in_pieces_is_explode(outer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However rows are cut, also in the middle of a list, and where there is no other column."""
    for names in (["k", "items"], ["items"]):
        schema = pa.schema([TABLE.schema.field(name) for name in names if name != "items"])
        schema = schema.append(pa.field("items", pa.int32()))
        explode = Explode("items", outer, schema)
        (batch,) = TABLE.select(names).to_batches()
        whole = list(explode.apply(iter([batch])))
        assert len(whole) == 1
        for rows, size in ((1, 1), (2, 1000), (3, 12), (4, 1)):
            monkeypatch.setattr("penstock.operators.verbs.MOST_ROWS", rows)
            monkeypatch.setattr("penstock.operators.verbs.MOST_BYTES", size)
            made = pa.Table.from_batches(explode.apply(iter([batch])))
            monkeypatch.undo()
            assert made.to_pylist() == whole[0].to_pylist()


def test_columns_that_are_larger_than_arrow_counts() -> None:
    """A long constant, and texts joined many times, are computed in parts: Arrow's strings end at 2 GB."""
    rows = pa.record_batch({"k": range(5000), "text": ["x" * 500] * 5000})
    for made in (pc.scalar("y" * 500_000), pc.binary_join_element_wise(*[pc.field("text")] * 1000, "")):
        stream = fromBatches([rows], 1).withColumn("long", made)
        (operator,) = stream.plan(Settings(), 8).graph.vertices[0].operators
        largest = found = 0
        for batch in operator.apply(iter([rows])):
            largest, found = max(largest, batch.nbytes), found + batch.num_rows
        assert found == 5000
        assert largest < 40 << 20


def test_computed_in_parts_is_computed() -> None:
    """A batch that is too much is halved until it is not; one row that is too much, and other errors, come out."""

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows > 3 or batch["n"].to_pylist() == [7]:
            raise ValuesError("joined") from pa.ArrowInvalid("offset overflow while concatenating arrays")
        return batch

    rows = pa.record_batch({"n": range(7)})
    parts = Portions(compute, may_grow=False)
    found = [[batch["n"].to_pylist() for batch in parts.of(rows)] for _ in range(2)]
    assert found == [[[0, 1, 2], [3, 4, 5], [6]]] * 2
    assert [batch.num_rows for batch in parts.of(rows.slice(0, 0))] == [0]
    with pytest.raises(ValuesError, match="joined"):
        list(parts.of(pa.record_batch({"n": [7]})))
    with pytest.raises(ZeroDivisionError):
        list(Portions(lambda _: 1 // 0, may_grow=True).of(rows))  # type: ignore[arg-type, return-value]
