# SPDX-License-Identifier: Apache-2.0
"""Views of files for readers elsewhere: real files, real threads, an event loop, and readers with little credit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.buffer import SegmentMemory
from penstock.environment.memory import HostMemory, MemoryArbiter
from penstock.environment.partitions.folders import Folders, remove_folder
from penstock.environment.partitions.producers import Producers
from penstock.environment.partitions.storage import Storage
from penstock.environment.partitions.stored import StoredPartitions, StoredResult
from penstock.environment.partitions.views import ServedView
from penstock.environment.reading.file_reads import FileReads
from penstock.environment.reading.read_ahead import AHEAD
from penstock.errors import IncompleteDataError, PartitionExpiredError, PartitionLostError
from penstock.link.rendezvous import Rendezvous
from penstock.partition.extents import data_name
from penstock.partition.file_output import FileOptions
from penstock.partition.hash_writer import HashWriter
from penstock.partition.lifecycle import PartitionState
from penstock.partition.registry import PartitionRegistry
from penstock.partition.sort_merge_writer import SortMergeWriter
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler
from penstock.settings import BlockingSettings
from penstock.shuffle import DatasetId, EndOfData, EndOfPartition, PartitionId, PartitionKind
from penstock.shuffle.events import decode_event
from penstock.shuffle.sums import sum_of
from penstock.testing import eventually

SCHEMA = pa.schema([("n", pa.int64())])
PARTITION = PartitionId(DatasetId("job", 0), 0, 1)
CHUNK = 4096
SUBPARTITIONS = 6
ROWS = 4000


def rows_of(subpartition: int) -> list[int]:
    """The rows that are written to a subpartition."""
    return list(range(subpartition * 10_000, subpartition * 10_000 + ROWS))


def batches_of(subpartition: int) -> Iterator[pa.RecordBatch]:
    """The same, in batches of a few hundred rows."""
    rows = rows_of(subpartition)
    for start in range(0, ROWS, 500):
        yield pa.record_batch([pa.array(rows[start : start + 500], pa.int64())], schema=SCHEMA)


@dataclass
class Bench:
    """A finished partition and its reads."""

    partition: StoredResult
    registry: PartitionRegistry
    reads: FileReads
    storage: Storage
    memory: HostMemory
    ends: list[EndOfPartition]

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return Path(self.partition.folder)

    async def close(self) -> None:
        """Close its parts."""
        await self.storage.close()
        await self.reads.close()
        self.memory.close()


Layout = type[HashWriter | SortMergeWriter]


async def make(folder: Path, layout: Layout, chunks: int = 4) -> Bench:
    """Write a partition, and finish it."""
    registry, reads = PartitionRegistry("here"), FileReads(chunks * CHUNK, CHUNK)
    storage = Storage(Folders(Rendezvous(folder), BlockingSettings()), reads, 0)
    memory = HostMemory.of(SegmentMemory.create(1, CHUNK, "test"))
    producers = Producers("here", registry, lambda _: None)
    partitions = StoredPartitions(producers, memory, MemoryArbiter(memory, lambda: None), storage)
    partition = partitions.register(PARTITION, SUBPARTITIONS, PartitionKind.BLOCKING_SORT_MERGE)
    made = Path(await partition.make_folder())
    partition.begin()
    writer = layout(made, SCHEMA, PARTITION, SUBPARTITIONS, FileOptions(sort_buffer=40_000))
    for turn in zip(*(batches_of(subpartition) for subpartition in range(SUBPARTITIONS)), strict=True):
        for subpartition, batch in enumerate(turn):
            writer.write(batch, subpartition)
    ends = list(writer.finish())
    partition.complete(ends)
    return Bench(partition, registry, reads, storage, memory, ends)


class Reader:
    """A connection's end of a view: takes what there is, gives credit, and puts the messages together."""

    def __init__(self, bench: Bench, first: int, count: int, credit: int) -> None:
        self.counter = CompletenessCounter()
        self.assembler = MessageAssembler(BatchCodec(SCHEMA), self.counter)
        self.rows: list[int] = []
        self.events: list[object] = []
        self.most_ready = 0
        self.view: ServedView = bench.partition.create_view(first, self.look, count)
        self.credit = 0
        self.grant(credit)

    def grant(self, credit: int) -> None:
        """Credit for the view."""
        self.credit += credit
        self.view.on_credit(credit)

    def look(self) -> None:
        """Called when the view has something: nothing is taken before `take`."""

    def take(self) -> None:
        """Take all there is; every chunk is sent at once, and its buffer granted again."""
        self.most_ready = max(self.most_ready, len(self.view._ahead))
        while self.view.is_available and self.view.failure is None:
            item = self.view.poll()
            assert item is not None
            assert isinstance(item.payload, bytes)
            if not item.is_buffer:
                self.events.append(decode_event(item.payload))
                continue
            assert 0 < len(item.payload) <= CHUNK
            for batch in self.assembler.feed(memoryview(item.payload)):
                self.rows += batch.column(0).to_pylist()
            assert item.recycle is not None
            item.recycle()
            self.view.on_credit(1)


async def until(condition: Callable[[], bool], readers: list[Reader]) -> None:
    """Let the loop run, the readers taking what comes, until the condition holds."""

    def is_met() -> bool:
        for reader in readers:
            reader.take()
        return condition()

    await eventually(is_met, "readers that take what comes")


def run(bench_of: Callable[[], Awaitable[Bench]], body: Callable[[Bench], Awaitable[None]]) -> None:
    """A test's loop; reads are closed after it and nothing is held."""

    async def main() -> None:
        bench = await bench_of()
        try:
            await body(bench)
            await until(lambda: bench.reads.bytes_held == 0, [])
        finally:
            await bench.close()

    asyncio.run(main())


@pytest.mark.parametrize("layout", [HashWriter, SortMergeWriter])
def test_many_readers_get_their_ranges_within_the_memory(tmp_path: Path, layout: Layout) -> None:
    """Twenty overlapping ranges with four chunks of memory: all rows, right figures, never more than the memory."""

    async def body(bench: Bench) -> None:
        cuts = [(first, count) for first in range(SUBPARTITIONS) for count in range(1, SUBPARTITIONS - first + 1)]
        readers = [Reader(bench, *cut, credit=2) for cut in cuts]
        most = 0

        def ended() -> bool:
            nonlocal most
            most = max(most, bench.reads.bytes_held)
            return all(len(reader.events) == 2 for reader in readers)

        await until(ended, readers)
        assert most <= 4 * CHUNK
        for reader, (first, count) in zip(readers, cuts, strict=True):
            expected = [row for subpartition in range(first, first + count) for row in rows_of(subpartition)]
            assert sorted(reader.rows) == expected
            end = sum_of(bench.ends[first : first + count])
            assert reader.events == [EndOfData(), end]
            reader.counter.verify(end, "here")
            assert reader.most_ready <= min(AHEAD, 2)
            reader.view.release()
        assert bench.partition.state is PartitionState.CONSUMED

    run(lambda: make(tmp_path, layout), body)


@pytest.mark.parametrize("layout", [HashWriter, SortMergeWriter])
def test_readers_without_credit_hold_no_memory(tmp_path: Path, layout: Layout) -> None:
    """A hundred readers that grant nothing leave the memory to the one that does; their backlog asks for credit."""

    async def body(bench: Bench) -> None:
        idle = [Reader(bench, number % SUBPARTITIONS, 1, credit=0) for number in range(100)]
        busy = Reader(bench, 0, SUBPARTITIONS, credit=3)
        await until(lambda: len(busy.events) == 2, [busy])
        assert len(busy.rows) == SUBPARTITIONS * ROWS
        assert all(reader.view.backlog > 0 and not reader.view.is_available for reader in idle)
        idle[0].grant(1)
        await until(lambda: len(idle[0].events) == 2, [idle[0]])
        assert idle[0].rows == rows_of(0)

    run(lambda: make(tmp_path, layout), body)


def test_a_file_is_read_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of all subpartitions, opened from the last to the first: the file is gone through once or twice."""
    offsets: list[int] = []
    read = ServedView.read

    def noted(view: ServedView) -> bytes | None:
        if view.place[1]:
            offsets.append(view.place[1])
        return read(view)

    monkeypatch.setattr(ServedView, "read", noted)

    async def body(bench: Bench) -> None:
        readers = [Reader(bench, first, 1, credit=AHEAD) for first in reversed(range(SUBPARTITIONS))]
        await until(lambda: all(len(reader.events) == 2 for reader in readers), readers)
        turns = sum(following < offset for offset, following in itertools.pairwise(offsets))
        assert len(offsets) >= SUBPARTITIONS * ROWS * 8 // CHUNK
        assert turns <= len(offsets) // 5

    run(lambda: make(tmp_path, SortMergeWriter, chunks=16), body)


def test_a_reader_that_leaves_gives_back_what_was_read_for_it(tmp_path: Path) -> None:
    """Released in mid-data, with chunks ready and a read under way, a view holds nothing, and tells nobody."""

    async def body(bench: Bench) -> None:
        reader = Reader(bench, 0, SUBPARTITIONS, credit=AHEAD)
        await until(lambda: len(reader.view._ahead) > 1, [])
        reader.view.release()
        reader.view.release()
        assert reader.view.poll() is None
        assert not reader.view.is_available

    run(lambda: make(tmp_path, SortMergeWriter), body)


@pytest.mark.parametrize("layout", [HashWriter, SortMergeWriter])
def test_a_damaged_file_is_the_readers_error(tmp_path: Path, layout: Layout) -> None:
    """A flipped bit is IncompleteDataError with partition, attempt, host and file; the others go on."""

    async def body(bench: Bench) -> None:
        path = bench.folder / data_name(0)
        data = bytearray(path.read_bytes())
        data[len(data) // 3 if layout is HashWriter else 400] ^= 4
        path.write_bytes(data)
        damaged = Reader(bench, 0, 1, credit=50)
        await until(lambda: damaged.view.failure is not None, [damaged])
        assert isinstance(damaged.view.failure, IncompleteDataError)
        for part in (str(PARTITION), "attempt 1", "on here", str(path)):
            assert part in str(damaged.view.failure)
        sound = Reader(bench, SUBPARTITIONS - 1, 1, credit=2)
        await until(lambda: len(sound.events) == 2, [sound])
        assert not bench.partition.state.is_end

    run(lambda: make(tmp_path, layout), body)


@pytest.mark.parametrize("layout", [HashWriter, SortMergeWriter])
def test_a_missing_file_loses_the_partition(tmp_path: Path, layout: Layout) -> None:
    """The reader that finds it gone gets PartitionLostError, and so does everybody after it."""

    async def body(bench: Bench) -> None:
        (bench.folder / data_name(0)).unlink()
        reader = Reader(bench, 0, 1, credit=2)
        await until(lambda: reader.view.failure is not None, [reader])
        assert isinstance(reader.view.failure, PartitionLostError)
        assert str(bench.folder / data_name(0)) in str(reader.view.failure)
        with pytest.raises(PartitionLostError, match=str(PARTITION)):
            bench.registry.find(PARTITION)
        await until(lambda: not bench.folder.exists(), [])

    run(lambda: make(tmp_path, layout), body)


def test_a_reader_in_mid_data_outlives_the_partition_or_hears_how_it_ended(tmp_path: Path) -> None:
    """An open file is read on when the files go; of another the reader hears how the partition ended."""

    async def body(bench: Bench) -> None:
        reader = Reader(bench, 0, SUBPARTITIONS, credit=1)
        await until(lambda: len(reader.view._ahead) == 1, [])
        bench.registry.expire([PARTITION])
        remove_folder(bench.folder)
        await until(lambda: reader.view.failure is not None, [reader])
        assert isinstance(reader.view.failure, PartitionExpiredError)

    run(lambda: make(tmp_path, HashWriter), body)
