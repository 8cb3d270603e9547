# SPDX-License-Identifier: Apache-2.0
"""Blocks of the remote service: both ways of making them give each subpartition its rows, in order."""

from __future__ import annotations

from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.buffer.arrow import PayloadFormat
from penstock.partition.arrival_writer import ArrivalWriter
from penstock.partition.file_output import FileOptions
from penstock.partition.region_writer import RegionWriter
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler
from penstock.remote.blocks import BLOCK_BYTES, read_blocks
from penstock.services.remote.block_sink import BlockSink
from penstock.services.remote.push_queue import PushedBlock
from penstock.shuffle import EndOfPartition
from penstock.shuffle.splits import Split

SCHEMAS = {
    "fixed": pa.schema([("n", pa.int64())]),
    "texts": pa.schema([("n", pa.int64()), ("s", pa.string())]),
    "dictionary": pa.schema([("n", pa.int64()), ("s", pa.dictionary(pa.int32(), pa.string()))]),
}
SUBPARTITIONS = 3
WIDE = FileOptions("none")


def batch(kind: str, first: int, rows: int) -> pa.RecordBatch:
    """Numbers from there on, and their texts."""
    columns = [pa.array(np.arange(first, first + rows))]
    if kind != "fixed":
        columns.append(pa.array([f"row {number}" * 40 for number in range(first, first + rows)]))
    if kind == "dictionary":
        columns[1] = columns[1].dictionary_encode()
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[kind])


def rows_of(kind: str, blocks: list[PushedBlock], ends: tuple[EndOfPartition, ...]) -> list[list[int]]:
    """The numbers that each subpartition got; its sums are those of its messages, its blocks are in order."""
    found = []
    for file, end in enumerate(ends):
        own = [block for block in blocks if block.file == file]
        assert [block.number for block in own] == list(range(len(own)))
        assert all(block.length <= BLOCK_BYTES for block in own)
        counter = CompletenessCounter()
        assembler = MessageAssembler(BatchCodec(SCHEMAS[kind]), counter)
        numbers: list[int] = []
        for block in own:
            ((_, data),) = read_blocks(memoryview(block.head + b"".join(block.parts)))
            for given_batch in assembler.feed(data, is_kept=True):
                numbers += given_batch.column("n").to_pylist()
        assembler.finish()
        assert counter.end_of_partition() == end
        assert sum(block.sums[0] for block in own) == len(numbers)
        found.append(numbers)
    return found


@given(
    st.sampled_from(sorted(SCHEMAS)),
    st.lists(st.lists(st.sampled_from([0, 1, 7, 4000]), min_size=1, max_size=SUBPARTITIONS), max_size=12),
)
@settings(max_examples=examples(60), deadline=None)
@pytest.mark.parametrize("form", [ArrivalWriter, RegionWriter])
def test_each_subpartition_gets_its_rows_in_order(
    form: type[ArrivalWriter | RegionWriter], kind: str, steps: list[list[int]]
) -> None:
    """Splits and batches for all take turns; a list of one count is for all."""
    blocks: list[PushedBlock] = []
    sink = BlockSink(7, SUBPARTITIONS, blocks.extend, is_broadcast=False)
    writer = form(sink, "a partition", SCHEMAS[kind], SUBPARTITIONS, FileOptions("none", 1 << 20))
    expected: list[list[int]] = [[] for _ in range(SUBPARTITIONS)]
    number = 0
    for counts in steps:
        rows = batch(kind, number, sum(counts))
        if len(counts) == 1:
            writer.broadcast(rows)
            for each in expected:
                each.extend(range(number, number + counts[0]))
        else:
            writer.write_split(Split(rows, range(len(counts)), counts))
            begin = number
            for subpartition, count in enumerate(counts):
                expected[subpartition].extend(range(begin, begin + count))
                begin += count
        number += sum(counts)
    ends = writer.finish()
    assert rows_of(kind, blocks, ends) == expected
    assert sink.nbytes == sum(block.length for block in blocks)


def test_full_blocks_go_at_once() -> None:
    """So a task pushes while it produces, and holds a block for each subpartition at most."""
    blocks: list[PushedBlock] = []
    sink = BlockSink(7, 2, blocks.extend, is_broadcast=False)
    writer = ArrivalWriter(sink, "a partition", SCHEMAS["fixed"], 2, WIDE)
    rows = batch("fixed", 0, 32 << 10)
    for _ in range(20):
        writer.write(rows, 1)
    assert sum(block.length for block in blocks) > 20 * rows.nbytes - BLOCK_BYTES
    assert {block.file for block in blocks} == {1}
    ends = writer.finish()
    assert [end.rows for end in ends] == [0, 20 * rows.num_rows]


@pytest.mark.parametrize("for_all", [False, True])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_short_batches_are_joined(compression: str, for_all: bool) -> None:
    """A row at a time, in memory that its owner writes anew each time: about the bytes of the rows are pushed."""
    blocks: list[PushedBlock] = []
    sink = BlockSink(7, 1, blocks.extend, is_broadcast=False)
    writer = ArrivalWriter(sink, "a partition", SCHEMAS["fixed"], 1, FileOptions(compression))
    memory = np.zeros(1, np.int64)
    rows = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(memory)])], ["n"])
    for number in range(2000):
        memory[0] = number
        if for_all:
            writer.broadcast(rows)
        else:
            writer.write(rows, 0)
    ends = writer.finish()
    assert sink.nbytes < 2 * 2000 * 8
    if compression == "none":
        assert rows_of("fixed", blocks, ends) == [list(range(2000))]


def test_a_long_batch_becomes_messages_that_fit_a_block() -> None:
    """Nobody puts together a message of many blocks."""
    blocks: list[PushedBlock] = []
    writer = ArrivalWriter(
        BlockSink(7, 1, blocks.extend, is_broadcast=False), "a partition", SCHEMAS["fixed"], 1, WIDE
    )
    rows = 5 * BLOCK_BYTES // 8
    writer.write(batch("fixed", 0, rows), 0)
    assert sum(block.sums[0] for block in blocks) >= rows * 4 // 5
    assert all(block.sums[0] for block in blocks)
    assert rows_of("fixed", blocks, writer.finish()) == [list(range(rows))]


@pytest.mark.parametrize("form", [ArrivalWriter, RegionWriter])
def test_a_row_longer_than_many_blocks_is_cut(form: type[ArrivalWriter | RegionWriter]) -> None:
    """A row of 100 MB among short ones, of which one is behind it: each comes whole, and in its place."""
    blocks: list[PushedBlock] = []
    writer = form(BlockSink(7, 2, blocks.extend, is_broadcast=False), "a partition", SCHEMAS["texts"], 2, WIDE)
    long = pa.record_batch([pa.array([1]), pa.array(["x" * 100_000_000])], schema=SCHEMAS["texts"])
    for rows in (batch("texts", 0, 1), long, batch("texts", 2, 1)):
        writer.write(rows, 1)
    assert rows_of("texts", blocks, writer.finish()) == [[], [0, 1, 2]]


def test_half_a_split_is_never_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that can't be encoded give the partition up."""
    writer = ArrivalWriter(BlockSink(7, 2, lambda _: None, is_broadcast=False), "half", SCHEMAS["fixed"], 2, WIDE)
    encode, calls = PayloadFormat.encode, count()

    def failing(self: PayloadFormat, rows: pa.RecordBatch) -> pa.Buffer:
        if next(calls):
            raise MemoryError
        return encode(self, rows)

    monkeypatch.setattr(PayloadFormat, "encode", failing)
    with pytest.raises(MemoryError):
        writer.write_split(Split(batch("fixed", 0, 20_000), (0, 1), (10_000, 10_000)))
    with pytest.raises(ValueError, match="given up"):
        writer.finish()


def test_a_regions_blocks_of_a_file_lie_together() -> None:
    """So a reader of an object store asks for one stretch of each region, though full blocks were there first."""
    blocks: list[PushedBlock] = []
    sink = BlockSink(7, 2, blocks.extend, is_broadcast=False)
    writer = RegionWriter(sink, "a partition", SCHEMAS["fixed"], 2, FileOptions("none", 4 * BLOCK_BYTES))
    each = 3 * BLOCK_BYTES // 16  # rows: a block and a half
    writer.write_split(Split(batch("fixed", 0, 2 * each), (0, 1), (each, each)))
    writer.finish()
    assert [(block.file, block.number) for block in blocks] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_rows_for_all_are_one_file_where_everything_is() -> None:
    """A partition whose rows go to all has them once."""
    blocks: list[PushedBlock] = []
    writer = ArrivalWriter(BlockSink(7, 5, blocks.extend, is_broadcast=True), "one", SCHEMAS["fixed"], 5, WIDE)
    writer.broadcast(batch("fixed", 0, 10))
    assert [end.rows for end in writer.finish()] == [10] * 5
    assert [block.file for block in blocks] == [0]


def test_many_subpartitions_are_sorted() -> None:
    """Open blocks are to take less memory than a region."""
    assert ArrivalWriter.fits(8, WIDE)
    assert not ArrivalWriter.fits(9, WIDE)


def test_bad_input_is_refused_with_nothing_lost() -> None:
    """Another schema, a subpartition that is none, and a writer that is over; what was written before stays."""
    blocks: list[PushedBlock] = []
    writer = ArrivalWriter(
        BlockSink(7, 2, blocks.extend, is_broadcast=False), "a partition", SCHEMAS["fixed"], 2, WIDE
    )
    rows = batch("fixed", 0, 3)
    writer.write(rows, 0)
    with pytest.raises(ValueError, match="schema"):
        writer.broadcast(batch("texts", 0, 3))
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match=f"no subpartition {wrong}"):
            writer.write(rows, wrong)
    with pytest.raises(ValueError, match="no subpartition 2"):
        writer.write_split(Split(rows, (1, 2), (1, 2)))
    writer.write_split(Split(rows.slice(0, 0), (), ()))
    ends = writer.finish()
    assert rows_of("fixed", blocks, ends) == [[0, 1, 2], []]
    with pytest.raises(ValueError, match="finished"):
        writer.write(rows, 0)
    with pytest.raises(ValueError, match="finished"):
        writer.finish()
