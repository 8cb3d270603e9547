# SPDX-License-Identifier: Apache-2.0
"""Rows out of several runs are those that Arrow takes out of all of them joined."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from penstock.stream.run_rows import taken

KINDS = [pa.int64(), pa.string(), pa.list_(pa.int32())]


def run_of(first: int, count: int) -> list[pa.Array]:
    """Columns of numbers, texts and lists, with nulls."""
    numbers = [None if n % 7 == 3 else n for n in range(first, first + count)]
    return [
        pa.array(numbers, pa.int64()),
        pa.array([None if n is None else f"text {n}" for n in numbers], pa.string()),
        pa.array([None if n is None else [n] * (n % 3) for n in numbers], pa.list_(pa.int32())),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_runs_are_those_of_all_joined(seed: int) -> None:
    """In any order and several times each; of no runs, one, or many, all or few of which have some of the rows."""
    chance = random.Random(seed)
    lengths = [chance.choice((1, 2, 5, 40)) for _ in range(chance.choice((1, 1, 2, 3, 12)))]
    runs = [run_of(sum(lengths[:place]), length) for place, length in enumerate(lengths)]
    rows = np.array([chance.randrange(sum(lengths)) for _ in range(chance.choice((0, 1, 3, 60)))], np.int64)
    found = taken(runs, lengths, KINDS, rows)
    joined = [pa.concat_arrays(columns).take(pa.array(rows)) for columns in zip(*runs, strict=True)]
    assert [column.to_pylist() for column in found] == [column.to_pylist() for column in joined]
    assert [column.type for column in found] == KINDS
    assert all(not len(column) for column in taken([], [], KINDS, np.zeros(0, np.int64)))
