# SPDX-License-Identifier: Apache-2.0
"""A shuffle service in one file: blocking partitions as files in a folder that the driver and all hosts share.

Name it by `service="folder_shuffle:FolderShuffleService"`, with the shared folder as `FOLDER_SHUFFLE` in the driver's
environment. A partition is a folder: the batches, one behind the other, and an index of them that appears when it is
complete. Why a partition can't be read is a file beside it. All of a job goes with the job, and all of an application
with its driver, or with the next one where it was killed: a driver holds a lock as long as it lives. Limits: a gate
looks every hundredth of a second; the file system must know `flock`.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import pyarrow as pa

from penstock import errors, shuffle
from penstock.plugin.environment import BlockingEnvironment
from penstock.plugin.gate import StoredGate
from penstock.plugin.partition_errors import unreadable
from penstock.plugin.writer import RowStore, StoredWriter
from penstock.shuffle import ChannelDescriptor, DatasetId, EndOfPartition, PartitionId, Received, ShuffleDescriptor
from penstock.shuffle.splits import Split

LOOK_SECONDS = 0.01
Entry = tuple[int, int, int, int, int]
"""Of a batch: subpartition (-1: all of them), offset, bytes, rows, checksum."""


def folder_of(application: str, environment: str = "") -> Path:
    """The folder of the partitions that tasks beside this environment write."""
    return Path(os.environ.get("FOLDER_SHUFFLE", tempfile.gettempdir()), f"folder-shuffle-{application}", environment)


def own(folder: Path) -> IO[str]:
    """Make a folder that goes with this process, and remove those of dead ones; gives its lock."""
    for lock in folder.parent.glob("folder-shuffle-*/lock"):
        with suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else its process lives
            shutil.rmtree(lock.parent)
    fresh = folder.with_name(f"new-{folder.name}")
    fresh.mkdir(parents=True)
    held = (fresh / "lock").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    fresh.rename(folder)  # nobody finds it before it is locked
    return held


def place_of(folder: Path, partition: PartitionId) -> Path:
    """The folder of one of them."""
    return folder / partition.job / f"{partition.dataset}.{partition.index}.{partition.attempt}"


def release(place: Path) -> None:
    """Remove a partition that is there, and have its readers told."""
    if place.is_dir():
        Path(f"{place}.released").touch()
        shutil.rmtree(place, ignore_errors=True)  # its writer may give it up meanwhile


def is_complete(source: ShuffleDescriptor) -> bool:
    """Tell whether a partition may be read; raises the error that says why it never will be."""
    place = Path(source.location)
    if (place / "index").exists():
        return True
    is_there = place.is_dir()  # from its registration on, until there is a mark
    for answer, kind in (("failed", errors.ProducerFailedError), ("released", errors.PartitionReleasedError)):
        with suppress(FileNotFoundError):
            cause = Path(f"{place}.{answer}").read_text()
            raise unreadable(source.partition, kind, f"is {answer}: {cause}")
    if not is_there:
        raise unreadable(source.partition, errors.PartitionLostError, f"is not at {place} any more")
    return False


def range_of(entries: Iterable[Entry], first: int, count: int = 1) -> list[Entry]:
    """Those of some subpartitions; a batch that went to all is there once for each of them."""
    times = ((each, count if each[0] < 0 else int(first <= each[0] < first + count)) for each in entries)
    return [entry for entry, number in times for _ in range(number)]


def end_of(entries: Iterable[Entry]) -> EndOfPartition:
    """The sums of these."""
    return shuffle.sum_of(EndOfPartition(rows, size, checksum) for _, _, size, rows, checksum in entries)


class FolderRows(RowStore):
    """The store of one partition, and what its rows go into: a disk has always room."""

    gather_bytes, holds_batches, nbytes = 1 << 20, False, 0

    def __init__(self, descriptor: shuffle.ResultPartitionDescriptor) -> None:
        self._subpartitions, self._place = descriptor.partition.subpartitions, Path(descriptor.shuffle.location)
        self._entries: list[Entry] = []

    def open(self) -> FolderRows:
        self._file = (self._place / "batches").open("wb")
        return self

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        data = sink.getvalue()
        self._entries.append((subpartition, self.nbytes, data.size, batch.num_rows, zlib.crc32(data)))
        self.nbytes += self._file.write(data)

    def write_split(self, split: Split) -> None:
        for subpartition, batch in split:
            self.write(batch, subpartition)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        self.write(batch, -1)

    def finish(self) -> tuple[EndOfPartition, ...]:
        self._file.close()
        (self._place / "written").write_text(json.dumps([self._subpartitions, self._entries]))
        (self._place / "written").rename(self._place / "index")
        return tuple(end_of(range_of(self._entries, number)) for number in range(self._subpartitions))

    def abort(self, cause: BaseException) -> None:
        self._file.close()
        with suppress(FileNotFoundError):  # the host's folder is gone
            Path(f"{self._place}.failed").write_text(f"{type(cause).__name__}: {cause}")
            shutil.rmtree(self._place)


class FolderGate(StoredGate):
    """An `InputGate`: partitions that are complete are read in turns, a batch at a time."""

    def __init__(
        self, host: shuffle.TaskHost, owner: shuffle.OwnerContext, descriptor: shuffle.InputGateDescriptor
    ) -> None:
        super().__init__(host, owner, descriptor)
        self._waiting: dict[int, ChannelDescriptor] = {}
        self._reading: deque[Iterator[Received]] = deque()

    def has_open(self) -> bool:
        return bool(self._waiting or self._reading)

    def open(self, channels: Sequence[tuple[int, ChannelDescriptor]]) -> None:
        self._waiting.update(channels)

    def next(self) -> Received | None:
        for number, channel in list(self._waiting.items()):
            if is_complete(channel.source):
                self._reading.append(self._read(number, self._waiting.pop(number)))
        while self._reading:
            if (received := next(self._reading[0], None)) is not None:
                self._reading.rotate(-1)
                return received
            self._reading.popleft()
        self._host.wake_in(LOOK_SECONDS)
        return None

    def let_go(self) -> None:
        self._waiting, self._reading = {}, deque()

    def _read(self, channel: int, wanted: ChannelDescriptor) -> Iterator[Received]:
        source, place = wanted.source, Path(wanted.source.location)
        try:
            width, entries = json.loads((place / "index").read_text())
            if wanted.subpartition + wanted.count > width:
                raise errors.PartitionError(f"partition {source.partition} has {width} subpartitions: {wanted}")
            entries = range_of(entries, wanted.subpartition, wanted.count)
            with (place / "batches").open("rb") as file:
                for _, offset, size, _, checksum in entries:
                    data = os.pread(file.fileno(), size, offset)
                    if zlib.crc32(data) != checksum:
                        raise unreadable(source.partition, errors.IncompleteDataError, f"is damaged: {place}")
                    yield Received(channel, pa.ipc.open_stream(data).read_next_batch())
        except FileNotFoundError:
            is_complete(source)  # it has just been released, or lost
            raise
        yield Received(channel, event=shuffle.EndOfData())
        yield Received(channel, event=end_of(entries))


class FolderEnvironment(BlockingEnvironment):
    """A `ShuffleEnvironment`."""

    def __init__(self, context: shuffle.ShuffleEnvironmentContext) -> None:
        super().__init__(context)
        self._folder = folder_of(context.application, context.host.environment)

    def writer(self, owner: shuffle.OwnerContext, descriptor: shuffle.ResultPartitionDescriptor) -> StoredWriter:
        return StoredWriter(self._host, owner, descriptor, FolderRows(descriptor))

    def gate(self, owner: shuffle.OwnerContext, descriptor: shuffle.InputGateDescriptor) -> FolderGate:
        return FolderGate(self._host, owner, descriptor)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        for each in partitions:
            release(place_of(self._folder, each))

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        names = [file.parent.name.rsplit(".", 2) for file in self._folder.glob("*/*/batches")]
        return [PartitionId(DatasetId.of(dataset), int(index), int(attempt)) for dataset, index, attempt in names]


class FolderMaster:
    """A `ShuffleMaster`: it knows where partitions lie, and removes them."""

    def __init__(self, context: shuffle.ShuffleMasterContext) -> None:
        self._folder = folder_of(context.application)

    async def start(self) -> None:
        self._lock = await asyncio.to_thread(own, self._folder)

    async def close(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._lock.close()

    def register_job(self, context: shuffle.JobShuffleContext) -> None:
        """Nothing is kept by jobs."""

    def unregister_job(self, job: str) -> None:
        for place in self._folder.glob(f"*/{job}"):
            shutil.rmtree(place, ignore_errors=True)

    async def register_partition_with_producer(
        self, job: str, partition: shuffle.PartitionDescriptor, producer: shuffle.ProducerDescriptor
    ) -> ShuffleDescriptor:
        identity = PartitionId(partition.dataset, partition.index, producer.attempt.attempt)
        place = place_of(self._folder / producer.environment, identity)
        await asyncio.to_thread(place.mkdir, parents=True, exist_ok=True)
        return ShuffleDescriptor(identity, FolderShuffleService.name, partition.kind, location=str(place))

    async def release_partition_externally(self, descriptor: ShuffleDescriptor) -> None:
        await asyncio.to_thread(release, Path(descriptor.location))


class FolderShuffleService:
    """The plug-in."""

    name = "folder_shuffle:FolderShuffleService"
    kinds = (shuffle.PartitionKind.BLOCKING_SORT_MERGE,)
    capabilities = shuffle.Capabilities(kinds, outlives_executors=True, uses_data_plane=False)
    create_shuffle_master = staticmethod(FolderMaster)
    create_shuffle_environment = staticmethod(FolderEnvironment)

    def preload(self) -> None:
        """Importing this file is all."""
