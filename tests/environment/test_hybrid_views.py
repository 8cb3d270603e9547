# SPDX-License-Identifier: Apache-2.0
"""Views of hybrid partitions over a real host: real segments, real files and threads, an event loop, no processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.buffer import BufferSlice, DataType
from penstock.environment.partitions.stored import StoredResult
from penstock.environment.partitions.views import LocalView, ServedView
from penstock.errors import IncompleteDataError
from penstock.link.control import unpack
from penstock.link.frames import IN_FILES
from penstock.partition.extents import OWN, Extent, data_name
from penstock.partition.stretched_file import StretchedFile
from penstock.shuffle import DatasetId, EndOfData, EndOfPartition, PartitionId, PartitionKind
from penstock.shuffle.events import decode_event, encode_event
from penstock.testing import eventually
from small_hosts import SEGMENT, host_of, on_loop
from underway import listed

SEGMENTS = 32
PARTITION = PartitionId(DatasetId("job", 0), 0, 1)


class Bench:
    """A host, and a partition whose slices the test writes itself."""

    def __init__(self, folder: Path, kind: PartitionKind = PartitionKind.HYBRID_FULL) -> None:
        folder.mkdir()
        self.host = host_of(folder, SEGMENTS)
        self.pool = self.host.memory.pool.create_local_pool(1, SEGMENTS, owner="the test")
        self.writer = self.host.memory.references.attach("the test")
        self.result: StoredResult = self.host.stored.register(PARTITION, 2, kind)
        self.result.hold()
        self.written = [b"", b""]
        self.own: StretchedFile | None = None

    def write(self, subpartition: int, byte: int) -> None:
        """A whole segment of one byte."""
        segment = self.pool.request()
        assert segment is not None
        self.writer.grant(segment, self.pool)
        self.host.memory.segments.view(segment)[:] = bytes([byte]) * SEGMENT
        piece = BufferSlice(segment, 0, SEGMENT, finished=True)
        self.writer.commit(piece, 1)
        self.result.take_slice(subpartition, piece)
        self.written[subpartition] += bytes([byte]) * SEGMENT

    async def store(self, subpartition: int, byte: int, size: int) -> Extent:
        """Bytes that the writer stores by itself."""
        if self.own is None:
            made: list[Path] = []
            self.result.prepare_own(lambda folder: made.append(Path(folder)))
            await eventually(lambda: bool(made), "the folder")
            self.own = StretchedFile(PARTITION, 2, made.pop)
        data = bytes([byte]) * size
        self.own.write([(subpartition, [memoryview(data)])])
        ((target, extent),) = self.own.take()
        assert (target, extent.length) == (subpartition, size)
        self.result.add_stored(subpartition, extent)
        self.written[subpartition] += data
        return extent

    def finish(self) -> None:
        """The writer ends."""
        if self.own is not None:
            self.own.close()
        for subpartition, data in enumerate(self.written):
            end = encode_event(EndOfPartition(len(data), len(data), 0))
            self.result.take_event(subpartition, end, DataType.EVENT)
        self.result.complete(())
        self.result.settle()
        self.result.close_producer()

    async def close(self) -> None:
        """Nothing is held after the partition."""
        if self.own is not None:
            self.own.close()
        self.result.release()
        await eventually(lambda: self.host.memory.pool.free == SEGMENTS, "memory to come back")
        self.host.memory.references.check()
        self.host.memory.pool.check()
        await self.host.close()


def damage(path: Path, position: int) -> None:
    """Change one byte of a file."""
    written = bytearray(path.read_bytes())
    written[position] ^= 1
    path.write_bytes(written)


def files(folder: Path) -> list[str]:
    """The files of all partitions."""
    return sorted(path.name for path in listed(folder, "host/*/*/*"))


class Reader:
    """One end of a view, which takes what there is whenever it is called, and only then."""

    def __init__(self, bench: Bench, served: bool, first: int = 0, count: int = 1) -> None:
        self.bench = bench
        self.data = b""
        self.events: list[object] = []
        self.called = True
        self.files = self.longest = 0
        make = bench.result.create_view if served else bench.result.create_local_view
        self.view: LocalView | ServedView = make(first, self._call, count)

    def _call(self) -> None:
        self.called = True

    def grant(self, buffers: int) -> None:
        """Credit, which only a view for a reader elsewhere asks for."""
        if isinstance(self.view, ServedView):
            self.view.on_credit(buffers)

    def take(self) -> bool:
        """Take what there is; whether that was the end."""
        while self.called and self.view.is_available and not self._is_at_end:
            assert self.view.failure is None, self.view.failure
            item = self.view.poll()
            assert item is not None
            if isinstance(item.payload, BufferSlice):
                piece = item.payload
                self.data += bytes(self.bench.host.memory.segments.view(piece.segment, piece.offset, piece.length))
                self.bench.host.memory.references.release(piece.segment)
            elif item.data_type == IN_FILES:
                self._read(unpack(item.payload))
            elif item.is_buffer:
                self.data += item.payload
                self.longest = max(self.longest, len(item.payload))
                self.grant(1)
            else:
                self.events.append(decode_event(item.payload))
            if item.recycle is not None:
                item.recycle()
        self.called = False
        return self._is_at_end

    @property
    def _is_at_end(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], EndOfPartition)

    def _read(self, message: dict[str, list[tuple[int, int, int, int, int]]]) -> None:
        for number, offset, length, _, skip in message["pieces"]:
            whole = (Path(str(message["folder"])) / data_name(number)).read_bytes()[offset : offset + length]
            self.data += whole[skip:]
            self.files += 1
        assert not self.view.is_available, "the next extents came before these were begun"
        self.view.resume()


SERVED = pytest.mark.parametrize("served", [False, True], ids=["local", "served"])


@SERVED
def test_what_leaves_memory_between_the_call_and_the_poll_is_read_from_storage(tmp_path: Path, served: bool) -> None:
    """A reader is called for data in memory; when it looks the data is only stored, and it gets it all the same."""

    async def test() -> None:
        bench = Bench(tmp_path / "host")
        reader = Reader(bench, served, 0, 2)
        reader.grant(3)
        for number in range(8):
            bench.write(number % 2, number)
        bench.finish()
        assert reader.view.is_available
        await eventually(lambda: bench.result.core.held == 0, "memory to be given up")
        reader.called = True  # as it was when the data was in memory; nobody calls again
        await eventually(reader.take, "the reader's end")
        assert reader.data == b"".join(bench.written)
        assert reader.events[0] == EndOfData()
        reader.view.release()
        await bench.close()

    on_loop(test)


@SERVED
def test_memory_and_storage_take_turns(tmp_path: Path, served: bool) -> None:
    """Some of it stored, then some in memory, and so on: one order, nothing twice."""

    async def test() -> None:
        bench = Bench(tmp_path / "host")
        reader = Reader(bench, served)
        reader.grant(2)
        for turn in range(4):
            for number in range(5):
                bench.write(0, 10 * turn + number)
            if turn % 2 == 0:
                bench.result.relieve(SEGMENTS)
                await eventually(lambda: bench.result.core.held == 0, "memory to be given up")
            if turn == 1:
                reader.take()
        bench.finish()
        await eventually(reader.take, "the reader's end")
        assert reader.data == bench.written[0]
        reader.view.release()
        await bench.close()

    on_loop(test)


@SERVED
def test_a_stored_partition_is_read_by_its_index(tmp_path: Path, served: bool) -> None:
    """A reader that comes after the index gets a view of the files; one that came before goes on as it began."""

    async def test() -> None:
        bench = Bench(tmp_path / "host")
        early = Reader(bench, served)
        assert isinstance(early.view, ServedView | LocalView)
        for number in range(6):
            bench.write(number % 2, number)
        bench.finish()
        await eventually(lambda: bench.result.core.is_indexed, "the index")
        assert files(tmp_path) == ["data.0", "index"]
        await eventually(lambda: not bench.host.arbiter.held and bench.host.memory.pool.free == SEGMENTS, "memory")
        late = bench.host.partitions.local_view(PARTITION, 0, 2, lambda: None)
        item = late.poll()
        assert item is not None
        assert item.data_type == IN_FILES
        assert unpack(item.payload)["range"] == (0, 2)  # type: ignore[arg-type]
        late.release()
        early.grant(2)
        early.called = True
        await eventually(early.take, "the early reader's end")
        assert early.data == bench.written[0]
        early.view.release()
        await bench.close()

    on_loop(test)


@SERVED
def test_a_writers_long_extents_come_in_order_with_what_is_in_memory(tmp_path: Path, served: bool) -> None:
    """Extents of many segments' bytes: a reader elsewhere is sent them in chunks, no longer than a segment."""

    async def test() -> None:
        bench = Bench(tmp_path / "host")
        reader = Reader(bench, served, 0, 2)
        reader.grant(2)
        for turn in range(3):
            for subpartition in range(2):
                bench.write(subpartition, 10 * turn + subpartition)
                await bench.store(subpartition, 50 + 10 * turn + subpartition, 10 * SEGMENT + turn)
                await asyncio.sleep(0)
                reader.take()
                assert bench.host.reads.bytes_held <= 4 * SEGMENT
        bench.finish()
        await eventually(reader.take, "the reader's end")
        assert reader.data == b"".join(bench.written)
        assert reader.longest <= SEGMENT
        reader.view.release()
        await bench.close()

    on_loop(test)


def test_a_damaged_long_extent_is_refused_whole(tmp_path: Path) -> None:
    """One byte of the writer's file changes: a reader elsewhere is told so, and gets none of the extent."""

    async def test() -> None:
        bench = Bench(tmp_path / "host")
        extent = await bench.store(0, 7, 10 * SEGMENT)
        damage(Path(bench.result.folder) / data_name(OWN), extent.offset + extent.length - 1)
        reader = Reader(bench, served=True)
        reader.grant(2)
        await eventually(lambda: reader.view.failure is not None, "the failure")
        assert isinstance(reader.view.failure, IncompleteDataError)
        assert not reader.data
        reader.view.release()
        await bench.close()

    on_loop(test)


def test_a_reader_that_leaves_while_its_extent_is_read_leaves_nothing(tmp_path: Path) -> None:
    """The permit comes back, the file goes with the partition."""

    async def test() -> None:
        bench = Bench(tmp_path / "host")
        for number in range(8):
            bench.write(0, number)
        bench.result.relieve(SEGMENTS)
        await eventually(lambda: bench.result.core.held == 0, "memory to be given up")
        reader = Reader(bench, served=True)
        reader.grant(4)
        assert bench.host.reads.bytes_held > 0
        reader.view.release()
        await eventually(lambda: bench.host.reads.bytes_held == 0, "the permit")
        assert files(tmp_path) == ["data.0"]
        await bench.close()
        assert not files(tmp_path)

    on_loop(test)
