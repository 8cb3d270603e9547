# SPDX-License-Identifier: Apache-2.0
"""A shuffle service in one file: blocking partitions as rows of SQLite, a database for each host, in one folder.

Name it by `service="sqlite_shuffle:SqliteShuffleService"`, with the folder as `SQLITE_SHUFFLE` in the environment of
the driver and of tasks. The driver enters a partition; its state, and why it can't be read, is its row, and its
batches are rows beside it. So a partition appears, and goes, in one transaction. All of a job goes with the job, and
all of an application with its driver, or with the next one where it was killed. Limits: SQLite takes one writer at a
time, so this is for a machine, or a file system whose locks work; a gate looks every hundredth of a second.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from penstock import errors, shuffle
from penstock.plugin.environment import BlockingEnvironment
from penstock.plugin.gate import StoredGate
from penstock.plugin.partition_errors import unreadable
from penstock.plugin.writer import RowStore, StoredWriter
from penstock.shuffle import ChannelDescriptor, DatasetId, EndOfPartition, PartitionId, Received, ShuffleDescriptor
from penstock.shuffle.splits import Split

TABLES = """
pragma synchronous = off; -- rows need not outlive the machine
create table if not exists partitions (name text primary key, job text, width integer, state text, cause text);
create table if not exists batches (name text, number integer, subpartition integer, rows integer, checksum integer,
    data blob, primary key (name, number));
"""
NUMBERS = """select number, iif(subpartition < 0, ?, 1) from batches
    where name = ? and (subpartition < 0 or subpartition >= ? and subpartition < ?) order by number"""
BATCH = "select rows, checksum, data from batches where name = ? and number = ?"
STORED = "update partitions set state = ? where name = ? and state = 'named'"
FAILED = "update partitions set state = 'failed', cause = ? where name = ? and state = 'named'"
RELEASED = "update partitions set state = 'released' where name = ? and state in ('named', 'complete')"
KINDS = errors.ProducerFailedError, errors.PartitionReleasedError, errors.PartitionLostError
REFUSALS = dict(zip(("failed", "released", "lost"), KINDS, strict=True))


def folder_of(application: str) -> Path:
    """The folder of an application's databases."""
    return Path(os.environ.get("SQLITE_SHUFFLE", tempfile.gettempdir()), f"sqlite-shuffle-{application}")


@contextmanager
def opened(path: str | Path) -> Iterator[sqlite3.Connection]:
    """A database, for one transaction, made if it is not there; StorageError where it can't be used."""
    try:
        with closing(sqlite3.connect(path, 60.0)) as base:
            base.executescript(TABLES)
            with base:
                yield base
    except sqlite3.Error as error:
        raise errors.StorageError(f"{path} can't be used: {error}") from error


def own(folder: Path) -> int:
    """Make a folder that goes with this process, and remove those of dead ones; gives its lock."""
    for lock in folder.parent.glob("sqlite-shuffle-*/lock"):
        with suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else its process lives
            shutil.rmtree(lock.parent)
    fresh = folder.with_name(f"new-{folder.name}")
    fresh.mkdir(parents=True)
    held = os.open(fresh / "lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    fresh.rename(folder)  # nobody finds it before it is locked
    return held


def name_of(partition: PartitionId) -> str:
    """The name of one of them in its database."""
    return f"{partition.dataset}.{partition.index}.{partition.attempt}"


def release(path: str | Path, partitions: Iterable[PartitionId]) -> None:
    """Remove partitions that are there, and have their readers told."""
    names = [(name_of(each),) for each in partitions]
    with opened(path) as base:
        base.executemany("delete from batches where name = ?", names)
        base.executemany(RELEASED, names)


def is_complete(source: ShuffleDescriptor) -> bool:
    """Tell whether a partition may be read; raises the error that says why it never will be."""
    query = "select state, cause from partitions where name = ?"
    with opened(source.location) as base:
        state, cause = base.execute(query, (name_of(source.partition),)).fetchone() or ("lost", "it is not here")
    if (kind := REFUSALS.get(state)) is not None:
        raise unreadable(source.partition, kind, f"is {state} in {source.location}: {cause}")
    return bool(state == "complete")


class SqliteRows(RowStore):
    """The store of one partition, and what its rows go into: some are gathered for each transaction."""

    gather_bytes, holds_batches, nbytes, _count, _held = 1 << 20, False, 0, 0, 0

    def __init__(self, descriptor: shuffle.ResultPartitionDescriptor) -> None:
        self._path, self._name = descriptor.shuffle.location, name_of(descriptor.shuffle.partition)
        self._ends: list[list[EndOfPartition]] = [[] for _ in range(descriptor.partition.subpartitions)]
        self._waiting: list[tuple[object, ...]] = []

    def open(self) -> SqliteRows:
        return self

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        data = sink.getvalue()
        end = EndOfPartition(batch.num_rows, data.size, zlib.crc32(data))
        self._waiting.append((self._name, self._count, subpartition, end.rows, end.checksum, memoryview(data)))
        for ends in self._ends if subpartition < 0 else [self._ends[subpartition]]:
            ends.append(end)
        self._count, self._held, self.nbytes = self._count + 1, self._held + data.size, self.nbytes + data.size
        if self._held >= self.gather_bytes:
            self._store("named")

    def write_split(self, split: Split) -> None:
        for subpartition, batch in split:
            self.write(batch, subpartition)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        self.write(batch, -1)

    def finish(self) -> tuple[EndOfPartition, ...]:
        self._store("complete")
        return tuple(shuffle.sum_of(ends) for ends in self._ends)

    def abort(self, cause: BaseException) -> None:
        self._waiting = []
        with suppress(errors.StorageError), opened(self._path) as base:  # the host's database may be gone
            base.execute("delete from batches where name = ?", (self._name,))
            base.execute(FAILED, (f"{type(cause).__name__}: {cause}", self._name))

    def _store(self, state: str) -> None:
        """Store what waits; StorageError where the partition was let go."""
        with opened(self._path) as base:
            base.executemany("insert into batches values (?, ?, ?, ?, ?, ?)", self._waiting)
            if not base.execute(STORED, (state, self._name)).rowcount:
                raise errors.StorageError(f"partition {self._name} was released while it was written")
        self._waiting, self._held = [], 0


class SqliteGate(StoredGate):
    """An `InputGate`: partitions that are complete are read in turns, a batch at a time."""

    def __init__(
        self, host: shuffle.TaskHost, owner: shuffle.OwnerContext, descriptor: shuffle.InputGateDescriptor
    ) -> None:
        super().__init__(host, owner, descriptor)
        self._reading: dict[int, Iterator[Received | None]] = {}

    def has_open(self) -> bool:
        return bool(self._reading)

    def open(self, channels: Sequence[tuple[int, ChannelDescriptor]]) -> None:
        self._reading.update((number, self._read(number, channel)) for number, channel in channels)

    def next(self) -> Received | None:
        for number, reading in list(self._reading.items()):
            for received in reading:
                if received is None:
                    break
                self._reading[number] = self._reading.pop(number)  # the others are next
                return received
            else:
                del self._reading[number]
        self._host.wake_in(0.01)
        return None

    def let_go(self) -> None:
        self._reading = {}

    def _read(self, channel: int, wanted: ChannelDescriptor) -> Iterator[Received | None]:
        """None while it is not complete; a batch that went to all is there once for each subpartition."""
        source, first, past = wanted.source, wanted.subpartition, wanted.subpartition + wanted.count
        name, ends = name_of(source.partition), []
        while not is_complete(source):
            yield None
        with opened(source.location) as base:
            (width,) = base.execute("select width from partitions where name = ?", (name,)).fetchone() or (past,)
            numbers = base.execute(NUMBERS, (wanted.count, name, first, past)).fetchall()
        if past > width:
            raise errors.PartitionError(f"partition {source.partition} has {width} subpartitions: {wanted}")
        for number, times in numbers:
            is_complete(source)  # it may have been released meanwhile
            with opened(source.location) as base:
                rows, checksum, data = base.execute(BATCH, (name, number)).fetchone()
            if zlib.crc32(data) != checksum:
                raise unreadable(source.partition, errors.IncompleteDataError, f"is damaged in {source.location}")
            for _ in range(times):
                ends.append(EndOfPartition(rows, len(data), checksum))
                yield Received(channel, pa.ipc.open_stream(data).read_next_batch())
        yield Received(channel, event=shuffle.EndOfData())
        yield Received(channel, event=shuffle.sum_of(ends))


class SqliteEnvironment(BlockingEnvironment):
    """A `ShuffleEnvironment`."""

    def __init__(self, context: shuffle.ShuffleEnvironmentContext) -> None:
        super().__init__(context)
        self._path = folder_of(context.application) / f"{context.host.environment}.sqlite"

    def writer(self, owner: shuffle.OwnerContext, descriptor: shuffle.ResultPartitionDescriptor) -> StoredWriter:
        return StoredWriter(self._host, owner, descriptor, SqliteRows(descriptor))

    def gate(self, owner: shuffle.OwnerContext, descriptor: shuffle.InputGateDescriptor) -> SqliteGate:
        return SqliteGate(self._host, owner, descriptor)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        release(self._path, partitions)

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        with opened(self._path) as base:
            names = [each.rsplit(".", 2) for (each,) in base.execute("select distinct name from batches").fetchall()]
        return [PartitionId(DatasetId.of(dataset), int(index), int(attempt)) for dataset, index, attempt in names]


class SqliteMaster:
    """A `ShuffleMaster`: it knows where partitions lie, enters them, and removes them."""

    def __init__(self, context: shuffle.ShuffleMasterContext) -> None:
        self._folder = folder_of(context.application)

    async def start(self) -> None:
        self._lock = await asyncio.to_thread(own, self._folder)

    async def close(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        os.close(self._lock)

    def register_job(self, context: shuffle.JobShuffleContext) -> None:
        """Nothing is kept by jobs."""

    def unregister_job(self, job: str) -> None:
        for path in self._folder.glob("*.sqlite"):
            with opened(path) as base:
                base.execute("delete from batches where name in (select name from partitions where job = ?)", (job,))
                base.execute("delete from partitions where job = ?", (job,))

    async def register_partition_with_producer(
        self, job: str, partition: shuffle.PartitionDescriptor, producer: shuffle.ProducerDescriptor
    ) -> ShuffleDescriptor:
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        path = self._folder / f"{producer.environment}.sqlite"
        await asyncio.to_thread(self._enter, path, (name_of(identity), job, partition.subpartitions))
        return ShuffleDescriptor(identity, SqliteShuffleService.name, partition.kind, location=str(path))

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        await asyncio.to_thread(release, descriptor.location, [descriptor.partition])

    def _enter(self, path: Path, row: tuple[str, str, int]) -> None:
        with opened(path) as base:
            base.execute("insert or ignore into partitions values (?, ?, ?, 'named', '')", row)


class SqliteShuffleService:
    """The plug-in."""

    name = "sqlite_shuffle:SqliteShuffleService"
    kinds = (shuffle.PartitionKind.BLOCKING_SORT_MERGE,)
    capabilities = shuffle.Capabilities(kinds, outlives_executors=True, uses_data_plane=False)
    create_shuffle_master = staticmethod(SqliteMaster)
    create_shuffle_environment = staticmethod(SqliteEnvironment)

    def preload(self) -> None:
        """Importing this file is all."""
