# SPDX-License-Identifier: Apache-2.0
"""Operators over user functions: what they are given, what they may give back."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.errors import PlanError, SchemaError
from penstock.operators.functions import (
    GroupApply,
    GroupApplyInArrow,
    GroupApplyInPandas,
    GroupForm,
    MapInArrow,
    MapInPandas,
    group_form,
    regrouped,
)

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
ROWS = pa.record_batch({"k": ["b", "a", "b", None], "v": [1, 2, 3, 4]})
OUT = pa.schema([("k", pa.string()), ("n", pa.int64())])


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives what it gets; importable, so it pickles."""
    yield from batches


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    """All rows of an operator's output."""
    return [row for batch in batches for row in batch.to_pylist()]


def test_map_in_arrow_is_called_once_for_all_batches() -> None:
    """The function gets the iterator itself; its output is conformed; the operator pickles."""
    operator = pickle.loads(pickle.dumps(MapInArrow(identity, SCHEMA)))  # noqa: S301 - our own bytes
    assert operator.name == "mapInArrow(identity)"
    assert rows_of(operator.apply(iter([ROWS, ROWS.slice(1, 1)]))) == [*ROWS.to_pylist(), {"k": "a", "v": 2}]


def counting(steps: int, rows: int = 3) -> Iterator[pa.RecordBatch]:
    """Batches over one array, which is written anew for each."""
    keys, values = pa.array(["a"] * rows), np.zeros(rows, np.int64)
    for step in range(steps):
        values[:] = step
        yield pa.RecordBatch.from_arrays([keys, pa.array(values)], schema=SCHEMA)


def counting_frames(steps: int) -> Iterator[Any]:
    """One frame, changed in its place."""
    frame = pd.DataFrame({"k": ["a"] * 3, "v": np.zeros(3, np.int64)})
    for _ in range(steps):
        yield frame
        frame["v"] += 1


class Again:
    """A group function with one array for all of its results."""

    def __init__(self) -> None:
        self._values = np.zeros(1, np.int64)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The rows of each group."""
        self._values[0] = len(rows)
        return pa.table([rows["k"][:1], pa.array(self._values)], schema=OUT)


def test_a_function_may_use_its_memory_again() -> None:
    """Rows that it yielded or returned keep their values, as in PySpark, however long somebody holds on to them."""
    arrow = list(MapInArrow(lambda _: counting(4), SCHEMA).apply(iter([])))
    pandas = list(MapInPandas(lambda _: counting_frames(4), SCHEMA).apply(iter([])))
    for held in (arrow, pandas):
        assert [batch["v"].to_pylist() for batch in held] == [[step] * 3 for step in range(4)]
    large = list(MapInArrow(lambda _: counting(3, 20_000), SCHEMA).apply(iter([])))
    assert [set(batch["v"].to_pylist()) for batch in large] == [{0}, {1}, {2}]
    groups = GroupApplyInArrow(GroupApply(SCHEMA, ("k",), Again(), GroupForm(), OUT))
    assert [row["n"] for row in rows_of(groups.apply(iter([ROWS])))] == [2, 1, 1]


class Doubled:
    """Stands for a function that is set up once."""

    def __init__(self) -> None:
        self.times = 2

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Each batch as often."""
        for batch in batches:
            yield from [batch] * self.times


def test_a_class_in_place_of_a_function() -> None:
    """The task makes one object and calls it with the iterator; the class pickles and gives the name."""
    operator = pickle.loads(pickle.dumps(MapInArrow(Doubled, SCHEMA)))  # noqa: S301 - our own bytes
    assert operator.name == "mapInArrow(Doubled)"
    assert rows_of(operator.apply(iter([ROWS]))) == [*ROWS.to_pylist(), *ROWS.to_pylist()]


def test_lists_are_taken_as_pyspark_takes_them() -> None:
    """A value that can be iterated over is as good as an iterator, of batches and of frames; no rows are none."""
    import pandas as pd

    assert rows_of(MapInArrow(lambda _: [ROWS, ROWS], SCHEMA).apply(iter([]))) == [*ROWS.to_pylist()] * 2  # type: ignore[arg-type, return-value]
    assert list(MapInArrow(lambda _: (), SCHEMA).apply(iter([ROWS]))) == []  # type: ignore[arg-type, return-value]
    frames = MapInPandas(lambda _: [pd.DataFrame({"k": ["a"], "v": [1]})], SCHEMA)  # type: ignore[arg-type, return-value]
    assert rows_of(frames.apply(iter([ROWS]))) == [{"k": "a", "v": 1}]


@pytest.mark.parametrize(
    ("result", "shown"),
    [(ROWS, "RecordBatch"), ("ab", "iterator of str"), (None, "NoneType"), (5, "int")],
)
def test_a_result_that_is_no_iterator(result: object, shown: str) -> None:
    """A batch, a text or nothing instead of an iterator is refused in the words of PySpark."""
    with pytest.raises(SchemaError, match=f"should be iterator of pyarrow.RecordBatch, but is {shown}"):
        list(MapInArrow(lambda _: result, SCHEMA).apply(iter([ROWS])))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("item", [pa.table({"k": ["a"], "v": [1]}), {"k": ["a"]}, None])
def test_items_that_are_no_batches(item: object) -> None:
    """A table or a dictionary where a batch should be is named by its type."""
    with pytest.raises(SchemaError, match=r"but is iterator of " + type(item).__name__):
        list(MapInArrow(lambda _: iter([item]), SCHEMA).apply(iter([ROWS])))


def test_what_a_function_raises_comes_out_as_it_is() -> None:
    """The very exception, before and after the first batch."""
    error = KeyError("lost")

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise error

    output = MapInArrow(fails, SCHEMA).apply(iter([ROWS]))
    assert next(output).num_rows == 4
    with pytest.raises(KeyError) as caught:
        next(output)
    assert caught.value is error


def test_map_in_pandas_sees_frames_as_pyspark_shows_them() -> None:
    """Zoned timestamps are naive wall-clock times of the session's zone, and come back as the same moments."""
    moment = dt.datetime(2024, 7, 1, 12, 0, tzinfo=dt.UTC)
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("s", pa.string())])
    batch = pa.record_batch([[moment, None], [dt.date(2024, 7, 1), None], ["x", None]], schema=schema)
    seen: list[Any] = []

    def look(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            seen.append((str(frame["t"].dtype), frame["t"][0].hour, frame["d"][0]))
            yield frame

    output = list(MapInPandas(look, schema, "Europe/Berlin").apply(iter([batch])))
    assert seen == [("datetime64[ns]", 14, dt.date(2024, 7, 1))]
    assert [part.to_pylist() for part in output] == [batch.to_pylist()]


def test_map_in_pandas_finds_columns_by_name() -> None:
    """Columns of a frame are matched by name; a frame without names is matched by position."""
    import pandas as pd

    def swapped(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            yield frame[["v", "k"]]
            yield pd.DataFrame([["z", 9]])

    assert rows_of(MapInPandas(swapped, SCHEMA).apply(iter([ROWS.slice(0, 1)]))) == [
        {"k": "b", "v": 1},
        {"k": "z", "v": 9},
    ]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"k": ["a"]}, "missing: v"),
        ({"k": ["a"], "v": [1], "w": [1]}, "unexpected: w: declare what it returns, or return what is declared"),
        ({"k": ["a"], "v": ["text"]}, "column 'v' is declared int64.*: convert it there, or declare another type"),
        ({0: ["a"]}, "the frame has 1 columns, declared are 2: declare what it returns"),
    ],
)
def test_frames_that_do_not_fit(frame: dict[Any, Any], message: str) -> None:
    """Missing, extra and unfit columns of a frame are refused by name."""
    import pandas as pd

    with pytest.raises(SchemaError, match=message):
        list(MapInPandas(lambda _: iter([pd.DataFrame(frame)]), SCHEMA).apply(iter([ROWS])))


def test_map_in_pandas_wants_frames() -> None:
    """An item that is no frame, and a result that is no iterator, are refused."""
    with pytest.raises(SchemaError, match=r"iterator of pandas.DataFrame, but is iterator of RecordBatch"):
        list(MapInPandas(lambda _: iter([ROWS]), SCHEMA).apply(iter([ROWS])))
    with pytest.raises(SchemaError, match=r"but is NoneType"):
        list(MapInPandas(lambda _: None, SCHEMA).apply(iter([ROWS])))  # type: ignore[arg-type, return-value]


def count_table(table: pa.Table) -> pa.Table:
    """One row for a group, without the key."""
    return pa.table({"k": table["k"].slice(0, 1), "n": [table["v"].to_pylist()[-1] + 10 * table.num_rows]})


def count_with_key(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
    """One row for a group, with the key."""
    return pa.table({"k": pa.array([key[0].as_py()], pa.string()), "n": [table.num_rows]})


def count_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for a group, over an iterator."""
    rows = list(batches)
    yield pa.record_batch({"k": rows[0].column("k").slice(0, 1), "n": [sum(batch.num_rows for batch in rows)]})


def count_batches_with_key(key: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row for a group, over an iterator with the key."""
    yield pa.record_batch({"k": pa.array([key[0].as_py()], pa.string()), "n": [sum(b.num_rows for b in batches)]})


@pytest.mark.parametrize(
    ("function", "form", "counts"),
    [
        (count_table, GroupForm(False, False), [23, 12, 14]),
        (count_with_key, GroupForm(True, False), [2, 1, 1]),
        (count_batches, GroupForm(False, True), [2, 1, 1]),
        (count_batches_with_key, GroupForm(True, True), [2, 1, 1]),
    ],
)
def test_group_apply_in_arrow_in_all_forms(function: Any, form: GroupForm, counts: list[int]) -> None:
    """Table or iterator, with or without key: recognised as PySpark does; groups in first-seen order."""
    assert group_form(function, "applyInArrow") == form
    operator = GroupApplyInArrow(GroupApply(SCHEMA, ("k",), function, form, OUT))
    found = rows_of(pickle.loads(pickle.dumps(operator)).apply(iter([ROWS.slice(0, 2), ROWS.slice(2)])))  # noqa: S301
    assert found == [{"k": key, "n": n} for key, n in zip(["b", "a", None], counts, strict=True)]


def test_group_apply_in_pandas_in_all_forms() -> None:
    """Frame or iterator of frames; the key is a tuple of Python values."""
    import pandas as pd

    def of_frame(key: Any, frame: Any) -> Any:
        return pd.DataFrame({"k": [key[0]], "n": [len(frame)]})

    def of_frames(frames: Iterator[Any]) -> Iterator[Any]:
        parts = list(frames)
        yield pd.DataFrame({"k": parts[0]["k"][:1], "n": [sum(map(len, parts))]})

    for function in (of_frame, of_frames):
        group = GroupApply(SCHEMA, ("k",), function, group_form(function, "applyInPandas"), OUT)
        found = rows_of(GroupApplyInPandas(group).apply(iter([ROWS])))
        assert found == [{"k": "b", "n": 2}, {"k": "a", "n": 1}, {"k": None, "n": 1}]


def test_group_results_are_checked() -> None:
    """A function over a table must return a table; its columns must fit."""
    for function, error, message in (
        (lambda table: table.to_batches()[0], SchemaError, "should be pyarrow.Table, but is RecordBatch"),
        (lambda table: table, SchemaError, "missing: n, unexpected: v"),
    ):
        operator = GroupApplyInArrow(GroupApply(SCHEMA, ("k",), function, GroupForm(), OUT))
        with pytest.raises(error, match=message):
            list(operator.apply(iter([ROWS])))


def test_forms_of_callables() -> None:
    """Objects with __call__, partials and lambdas are asked for their arity; three arguments are refused."""

    class Counter:
        def __call__(self, key: Any, table: pa.Table) -> pa.Table:
            return count_with_key(key, table)

    assert group_form(Counter(), "applyInArrow") == GroupForm(True, False)
    assert group_form(lambda table: table, "applyInArrow") == GroupForm()
    with pytest.raises(PlanError, match="takes 3"):
        group_form(lambda a, b, c: a, "applyInArrow")


def test_small_results_are_joined() -> None:
    """Many one-row batches leave as few; large ones pass as they are."""
    large = pa.record_batch({"a": range(20_000)})
    small = [pa.record_batch({"a": [n]}) for n in range(20_000)]
    assert [batch.num_rows for batch in regrouped(iter([large, *small]), None)] == [20_000, 16_384, 3_616]


def test_long_results_of_groups_do_not_wait_for_many() -> None:
    """Results are joined up to 8 MB, so a group's row of a megabyte is held beside a few others only."""
    rows = pa.record_batch({"k": ["x" * (1 << 20)], "v": [1]})
    asked = 0

    def results() -> Iterator[pa.RecordBatch]:
        nonlocal asked
        for _ in range(40):
            asked += 1
            yield rows

    waiting = []
    for batch in regrouped(results(), None):
        waiting.append(asked)
        assert batch.nbytes < 10 << 20
    assert waiting == [8, 16, 24, 32, 40]
