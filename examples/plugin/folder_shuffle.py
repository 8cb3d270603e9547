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
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import pyarrow as pa

from penstock import errors, shuffle
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId, Received, ShuffleDescriptor
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
        shutil.rmtree(place)


def unreadable(kind: type[errors.PenstockError], source: ShuffleDescriptor, why: str) -> errors.PenstockError:
    """The error by which the engine knows whose producer is to run again."""
    error = kind(f"partition {source.partition} {why}")
    error.partition = source.partition.to_wire()
    return error


def is_complete(source: ShuffleDescriptor) -> bool:
    """Tell whether a partition may be read; raises the error that says why it never will be."""
    place = Path(source.location)
    if (place / "index").exists():
        return True
    is_there = place.is_dir()  # from its registration on, until there is a mark
    for answer, kind in (("failed", errors.ProducerFailedError), ("released", errors.PartitionReleasedError)):
        with suppress(FileNotFoundError):
            raise unreadable(kind, source, f"is {answer}: {Path(f'{place}.{answer}').read_text()}")
    if not is_there:
        raise unreadable(errors.PartitionLostError, source, f"is not at {place} any more")
    return False


def range_of(entries: Iterable[Entry], first: int, count: int = 1) -> list[Entry]:
    """Those of some subpartitions; a batch that went to all is there once for each of them."""
    times = ((each, count if each[0] < 0 else int(first <= each[0] < first + count)) for each in entries)
    return [entry for entry, number in times for _ in range(number)]


def end_of(entries: Iterable[Entry]) -> EndOfPartition:
    """The sums of these."""
    return shuffle.sum_of(EndOfPartition(rows, size, checksum) for _, _, size, rows, checksum in entries)


class FolderWriter:
    """A `ResultPartitionWriter`: a disk has always room."""

    has_pending = False

    def __init__(self, host: shuffle.TaskHost, descriptor: shuffle.ResultPartitionDescriptor) -> None:
        self._subpartitions, self._place = descriptor.partition.subpartitions, Path(descriptor.shuffle.location)
        self._host = host
        self._entries: list[Entry] = []
        self._file: IO[bytes] | None = None

    def setup(self) -> shuffle.Intake:
        self._file = (self._place / "batches").open("wb")
        return shuffle.Intake()

    def offer(self, split: Split) -> int:
        self._host.check_cancelled()
        for subpartition, batch in split:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            data = sink.getvalue()
            self._entries.append((subpartition, self._file.tell(), data.size, batch.num_rows, zlib.crc32(data)))
            self._file.write(data)
        return split.rows

    def emit(self, event: shuffle.Event, kind: shuffle.EventKind = shuffle.EventKind.IN_ORDER) -> None:
        raise errors.ProtocolError("a folder carries no streams")

    def end_epoch(self, payload: bytes, kind: shuffle.EventKind, *, keep_overtaken: bool = False) -> None:
        raise errors.ProtocolError("a folder carries no streams")

    def overtaken(self) -> None:
        """Nothing is."""

    def flush(self) -> None:
        """Nobody sees a blocking partition before it is complete."""

    def finish(self) -> shuffle.PartitionEnd:
        self._file.flush()
        sums = tuple(end_of(range_of(self._entries, number)) for number in range(self._subpartitions))
        (self._place / "written").write_text(json.dumps([self._subpartitions, self._entries]))
        (self._place / "written").rename(self._place / "index")
        self._file.close()
        return shuffle.PartitionEnd(sums)

    def close(self, cause: BaseException | None = None) -> None:
        if self._file is not None and not self._file.closed:
            self._file.close()
            cause = cause or errors.PenstockError("the writer was closed before it was finished")
            with suppress(FileNotFoundError):  # the host's folder is gone
                Path(f"{self._place}.failed").write_text(f"{type(cause).__name__}: {cause}")
                shutil.rmtree(self._place)


class FolderGate:
    """An `InputGate`: partitions that are complete are read in turns, a batch at a time."""

    def __init__(self, host: shuffle.TaskHost, descriptor: shuffle.InputGateDescriptor) -> None:
        self.descriptor, self._host = descriptor, host
        self._waiting = {number: channel.source for number, channel in enumerate(descriptor.channels)}
        self._reading: deque[Iterator[Received]] = deque()

    @property
    def is_ended(self) -> bool:
        return not (self._waiting or self._reading)

    def setup(self) -> None:
        """Files are looked for, nobody is asked."""

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        self._host.check_cancelled()
        for channel, source in list(self._waiting.items()):
            if not source.is_unknown and is_complete(source):
                self._reading.append(self._read(channel, self._waiting.pop(channel)))
        while self._reading:
            if (received := next(self._reading[0], None)) is not None:
                self._reading.rotate(-1)
                return received
            self._reading.popleft()
        self._host.wake_in(LOOK_SECONDS)
        return None

    def poll_ahead(self) -> None:
        """Nothing overtakes rows."""

    def resume_consumption(self, channel: int) -> None:
        """No channel is ever blocked."""

    def close(self) -> None:
        self._waiting, self._reading = {}, deque()

    def update(self, real: ShuffleDescriptor) -> bool:
        """Put a producer where it is unknown; whether this gate waits for it. Any thread."""
        wanted = PartitionId(real.partition.dataset, real.partition.index, -1)
        found = [channel for channel, source in list(self._waiting.items()) if source.partition == wanted]
        self._waiting.update(dict.fromkeys(found, real))
        return bool(found)

    def _read(self, channel: int, source: ShuffleDescriptor) -> Iterator[Received]:
        wanted, place = self.descriptor.channels[channel], Path(source.location)
        try:
            width, entries = json.loads((place / "index").read_text())
            if wanted.subpartition + wanted.count > width:
                raise errors.PartitionError(f"partition {source.partition} has {width} subpartitions: {wanted}")
            entries = range_of(entries, wanted.subpartition, wanted.count)
            with (place / "batches").open("rb") as file:
                for _, offset, size, _, checksum in entries:
                    data = os.pread(file.fileno(), size, offset)
                    if zlib.crc32(data) != checksum:
                        raise unreadable(errors.IncompleteDataError, source, f"is damaged: {place}")
                    yield Received(channel, pa.ipc.open_stream(data).read_next_batch())
        except FileNotFoundError:
            is_complete(source)  # it has just been released, or lost
            raise
        yield Received(channel, event=shuffle.EndOfData())
        yield Received(channel, event=end_of(entries))


class FolderEnvironment:
    """A `ShuffleEnvironment`."""

    def __init__(self, context: shuffle.ShuffleEnvironmentContext) -> None:
        self._host = context.host
        self._folder = folder_of(context.application, context.host.environment)
        self._gates: list[tuple[shuffle.AttemptId, FolderGate]] = []

    def create_result_partition_writers(
        self, owner: shuffle.OwnerContext, descriptors: Sequence[shuffle.ResultPartitionDescriptor]
    ) -> list[shuffle.ResultPartitionWriter]:
        return [FolderWriter(self._host, descriptor) for descriptor in descriptors]

    def create_input_gates(
        self, owner: shuffle.OwnerContext, descriptors: Sequence[shuffle.InputGateDescriptor]
    ) -> list[shuffle.InputGate]:
        gates = [FolderGate(self._host, descriptor) for descriptor in descriptors]
        self._gates += [(owner.attempt, gate) for gate in gates]
        return list(gates)

    def release_partitions_locally(self, partitions: Iterable[PartitionId]) -> None:
        for each in partitions:
            release(place_of(self._folder, each))

    def partitions_occupying_local_resources(self) -> list[PartitionId]:
        names = [file.parent.name.rsplit(".", 2) for file in self._folder.glob("*/*/batches")]
        return [PartitionId(DatasetId.of(dataset), int(index), int(attempt)) for dataset, index, attempt in names]

    def update_partition_info(self, consumer: shuffle.AttemptId, descriptor: ShuffleDescriptor) -> bool:
        gates = [gate for attempt, gate in self._gates if attempt == consumer]
        return bool([gate for gate in gates if gate.update(descriptor)])

    def close(self) -> None:
        """Keep the finished partitions."""


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
