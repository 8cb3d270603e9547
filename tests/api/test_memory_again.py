# SPDX-License-Identifier: Apache-2.0
"""Functions that use the memory of what they gave again: all rows come, whatever the memory and what holds them.

The expected rows are written down, not computed by the same code: each step's number as often as a batch has rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from memory_again import KINDS, Kind, counts_of
from penstock.api.stream import Stream
from penstock.operators.file_forms import FileForm
from penstock.operators.file_write import STATUS_SCHEMA, WriteFiles
from penstock.settings import Settings
from penstock.testing.local_runner import run_local
from penstock.testing.sources import fromBatches

ONE = pa.RecordBatch.from_pydict({"one": [1]})
BLOCKING = Settings.from_conf({"spark.penstock.shuffle.mode": "blocking"})
TASKS = 2
Values = pa.ChunkedArray


def given(kind: Kind) -> Stream:
    """The rows that the function gives in two tasks."""
    return kind.over(fromBatches([ONE, ONE], TASKS)).select("v")


def rows(stream: Stream, settings: Settings | None = None) -> Values:
    """The values that arrive."""
    return run_local(stream, settings)["v"]


def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function that takes all of its input before it gives some."""
    yield from list(batches)


def filtered(kind: Kind) -> Values:
    """Kept rows and a column more, which a function holds."""
    made = given(kind).withColumn("w", pc.field("v")).filter(pc.field("w").is_valid() | pc.field("w").is_null())
    return rows(made.select("v").mapInArrow(held, pa.schema([kind.schema.field("v")])))


def counted(kind: Kind) -> Counter[str]:
    """The values by groups that are counted."""
    found = run_local(given(kind).keyBy("v").agg(n=("*", "count")))
    return Counter({repr(row["v"]): row["n"] for row in found.to_pylist()})


def collected(kind: Kind) -> Values:
    """The values in lists of one group."""
    found = run_local(given(kind).withColumn("k", pc.scalar(1)).keyBy("k").agg(v=("v", "collect_list")))
    return pa.chunked_array([chunk.flatten() for chunk in found["v"].chunks])


def grouped(kind: Kind) -> Values:
    """One group, which its function gives as it is."""
    made = given(kind).withColumn("k", pc.scalar(1)).groupBy("k")
    schema = pa.schema([kind.schema.field("v"), ("k", pa.int64())])
    return rows(made.applyInArrow(lambda table: table.cast(schema), schema).select("v"))


def joined(kind: Kind) -> Values:
    """A join whose two sides meet once."""
    stream = given(kind).withColumn("k", pc.scalar(1))
    other = fromBatches([pa.RecordBatch.from_pydict({"k": [1]})])
    return rows(stream.keyBy("k").join(other.keyBy("k")).select("v"))


def written(kind: Kind, folder: Path) -> Values:
    """A Parquet file of each task."""
    schema = pa.schema([kind.schema.field("v")])
    operator = WriteFiles(pafs.LocalFileSystem(), str(folder), FileForm("parquet", schema, "none"))
    run_local(given(kind).applied(operator, STATUS_SCHEMA))
    return pa.concat_tables([pq.read_table(path) for path in folder.iterdir()])["v"]


def ordered(kind: Kind) -> Values:
    """Sorted."""
    return rows(given(kind).sortBy("v"))


VERBS: dict[str, Callable[[Kind], Values | Counter[str]]] = {
    "collect": lambda kind: rows(given(kind)),
    "blocking": lambda kind: rows(given(kind).rebalance(3), BLOCKING),
    "broadcast": lambda kind: rows(given(kind).broadcast(1)),
    "held": filtered,
    "agg": counted,
    "collect_list": collected,
    "applyInArrow": grouped,
    "join": joined,
    "sortBy": ordered,
}


NEED_KEYS = ("agg", "sortBy")
GRID = [
    (verb, name)
    for verb in VERBS
    for name, kind in KINDS.items()
    if not (verb in NEED_KEYS and pa.types.is_nested(kind.schema.field("v").type))
]


@pytest.mark.parametrize(("verb", "name"), GRID)
def test_memory_that_is_written_again(verb: str, name: str) -> None:
    """Each batch keeps the rows that it had when it was given, through each verb."""
    expected = KINDS[name].counts(TASKS)
    if verb == "collect_list":  # it leaves nulls out
        del expected["None"]
    found = VERBS[verb](KINDS[name])
    assert (found if isinstance(found, Counter) else counts_of(found)) == expected


@pytest.mark.parametrize("name", KINDS)
def test_memory_that_is_written_again_in_files(name: str, tmp_path: Path) -> None:
    """Parquet files, whose row groups gather many batches, have the rows as they were given."""
    assert counts_of(written(KINDS[name], tmp_path)) == KINDS[name].counts(TASKS)
