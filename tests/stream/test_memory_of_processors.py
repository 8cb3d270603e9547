# SPDX-License-Identifier: Apache-2.0
"""Processors that use the memory of what they gave again: rows and states stay as they were when they were given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from penstock import BatchProcessor
from penstock.api.stateful import row_maker, state_schema
from penstock.stream.chain import Chain, StepContext
from penstock.stream.state.operator import BATCHES, FRAMES, ROWS, Spellings, StatefulOperator

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
WORDS = pa.schema([("k", pa.string()), ("word", pa.string()), ("n", pa.int64())])
LISTS = pa.schema([("k", pa.string()), ("all", pa.list_(pa.int64())), ("raw", pa.binary())])
ABC = ["a", "b", "c"]


def given(form: str, processor: Any, schema: pa.Schema, values: list[list[tuple[str, int]]]) -> list[dict[str, Any]]:
    """The rows that these batches give, looked at when all have gone through."""
    spellings = Spellings(state_schema, row_maker)
    step = StatefulOperator(form, processor, INPUT, ("k",), schema, spellings).step()
    chain = Chain([("it", step)])
    chain.open(StepContext(0, 1, 16, "stage 1"), ())
    batches = []
    for rows in values:
        batches += chain.push(pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], INPUT))
    chain.close()
    return [row for each in batches for row in each.to_pylist()]


class InArrow(BatchProcessor):
    """Keeps what came in states of each kind, all in one array of numbers and one of text."""

    def init(self, handle: Any) -> None:
        """Declare them."""
        self.numbers = np.zeros(1, np.int64)
        self.letters = bytearray(b" ")
        self.number = pa.array(self.numbers)
        offsets = pa.py_buffer(np.array([0, 1], np.int32))
        self.text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(self.letters)])
        self.last = handle.getValueState("last", "word string")
        self.all = handle.getListState("all", "v long")
        self.words = handle.getMapState("words", "word string", "again string")

    def handleBatch(self, keys: Any, rows: pa.RecordBatch, timerValues: Any) -> Iterator[pa.RecordBatch]:
        """Give the states as they were found, twice."""
        value = rows["v"][0].as_py()
        for _ in range(2):
            self.numbers[:], self.letters[:] = self.all.get(keys).rows["v"].to_numpy().sum(), b"?"
            found = "".join(self.words.entries(keys)[1]["word"].to_pylist())
            assert found == "".join(self.words.entries(keys)[2]["again"].to_pylist())
            yield pa.RecordBatch.from_arrays([keys.table["k"], pa.array([found]), self.number], schema=WORDS)
        if value:
            assert self.last.get(keys)["word"].to_pylist() == [ABC[value - 1]]
        self.numbers[:], self.letters[:] = value, ABC[value].encode()
        self.all.append(keys, keys.groups, {"v": self.number})
        self.last.put(keys, {"word": self.text})
        self.words.put(keys, keys.groups, {"word": self.text}, {"again": self.text})
        yield pa.RecordBatch.from_arrays([keys.table["k"], self.text, self.number], schema=WORDS)


def test_batches_and_states_in_arrow() -> None:
    """Columns over memory of the processor's own are copied, as rows and as states of each kind."""
    rows = given(BATCHES, InArrow(), WORDS, [[("x", 0)], [("x", 1)], [("x", 2)]])
    assert [(row["word"], row["n"]) for row in rows] == [
        *[("", 0), ("", 0), ("a", 0)],
        *[("a", 0), ("a", 0), ("b", 1)],
        *[("ab", 1), ("ab", 1), ("c", 2)],
    ]


class InFrames(StatefulProcessor):
    """Gives one frame again and again."""

    def init(self, handle: Any) -> None:
        """Make it."""
        self.values = np.zeros(1, np.int64)
        self.frame = pd.DataFrame({"k": ["x"], "word": ["w"], "n": pd.Series(self.values, copy=False)}, copy=False)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Three times for each key."""
        for frame in rows:
            for times in range(3):
                self.values[:] = frame["v"].iloc[0] * 10 + times
                yield self.frame

    def close(self) -> None:
        """Nothing is held."""


def test_frames() -> None:
    """They are copied when they are given: of a batch with two keys, and over two batches."""
    rows = given(FRAMES, InFrames(), WORDS, [[("x", 1), ("y", 2)], [("x", 3)]])
    assert [row["n"] for row in rows] == [10, 11, 12, 20, 21, 22, 30, 31, 32]


class InRows(StatefulProcessor):
    """Keeps one list and one bytearray, which it fills anew for each key."""

    def init(self, handle: Any) -> None:
        """Declare a state of each kind."""
        self.list: list[int] = []
        self.raw = bytearray(b" ")
        self.last = handle.getValueState("last", "all array<long>, raw binary")
        self.each = handle.getListState("each", "all array<long>")
        self.by = handle.getMapState("by", "n long", "all array<long>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Give what the states hold, then what came."""
        if self.last.exists():
            yield Row(k="last", all=self.last.get()[0], raw=self.last.get()[1])
            yield Row(k="each", all=[n for (each,) in self.each.get() for n in each], raw=b"")
            yield Row(k="by", all=[n for _, (each,) in self.by.iterator() for n in each], raw=b"")
        for row in rows:
            self.list[:], self.raw[:] = [row.v, row.v], str(row.v).encode()
            self.last.update((self.list, self.raw))
            self.each.appendValue((self.list,))
            self.by.updateValue((row.v,), (self.list,))
            yield Row(k=row.k, all=self.list, raw=self.raw)

    def close(self) -> None:
        """Nothing is held."""


def test_lists_and_bytes_in_rows() -> None:
    """Values that can be changed are copied; states of all keys of a batch are put together at its end only."""
    rows = given(ROWS, InRows(), LISTS, [[("x", 1), ("y", 2)], [("x", 3)]])
    assert [tuple(row.values()) for row in rows] == [
        ("x", [1, 1], b"1"),
        ("y", [2, 2], b"2"),
        ("last", [1, 1], b"1"),
        ("each", [1, 1], b""),
        ("by", [1, 1], b""),
        ("x", [3, 3], b"3"),
    ]
