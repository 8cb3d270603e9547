# SPDX-License-Identifier: Apache-2.0
"""Result files of this host: written by tasks, owned here, read again and again until they are released.

A reader on this host opens the file itself; a view serves readers elsewhere and reads the file in a thread, so
the loop never waits for a disk. What a view sends is the file's batches as messages of the record stream, then
the two closing events, so the reader's gate checks them like any other data.
"""

from __future__ import annotations

import asyncio
import glob
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from penstock.buffer import DataType
from penstock.network.attachment import FILE
from penstock.partition.answers import describe, end_error
from penstock.partition.lifecycle import PartitionEvent, PartitionLifecycle, PartitionState
from penstock.partition.registry import PartitionRegistry
from penstock.partition.result_file import FileOrigin, ResultFileReader
from penstock.partition.view import BufferOrEvent, DataListener
from penstock.shuffle import EndOfData, EndOfPartition, PartitionId
from penstock.shuffle.errors import PartitionNotProducedError, PenstockError, ProtocolError
from penstock.shuffle.events import encode_event

_CHUNK = 256 << 10
_AHEAD = 4
"""Chunks a view reads ahead of its reader's credit."""


class ResultView(Protocol):
    """What a result tells its readers' views."""

    def start(self) -> None:
        """The file is finished."""

    def fail(self, error: BaseException) -> None:
        """The file will never be finished."""


V = TypeVar("V", bound=ResultView)


class ResultFiles:
    """All result files of one environment."""

    def __init__(self, folder: Path, registry: PartitionRegistry, environment: str) -> None:
        self._folder = folder
        self._registry = registry
        self._environment = environment

    def register(self, partition: PartitionId, subpartitions: int) -> tuple[Path, ...]:
        """A new result; the paths to write it to. Raises ProtocolError or StaleError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        name = f"{partition.dataset}.{partition.index}.{partition.attempt}"
        paths = tuple(self._folder / f"{name}.{subpartition}" for subpartition in range(subpartitions))
        result = ResultPartition(partition, paths, self._registry, self._environment)
        self._registry.register(result)
        return paths

    def finish(self, partition: PartitionId, ends: Sequence[EndOfPartition]) -> None:
        """The files are complete."""
        self._get(partition).finish(ends)

    def fail(self, partition: PartitionId, cause: str) -> None:
        """The producer gave up."""
        self._registry.fail(partition, cause)

    def _get(self, partition: PartitionId) -> ResultPartition:
        found = self._registry.get(partition)
        if isinstance(found, ResultPartition):
            return found
        if found is not None:
            raise ProtocolError(f"partition {partition} is no result file")
        self._registry.request(partition, 0, lambda: None)  # raises the answer that fits
        raise PartitionNotProducedError(f"partition {partition} is not known on {self._environment}")


class ResultPartition:
    """The files of one blocking partition; a `ReadablePartition` of the registry."""

    def __init__(
        self, partition: PartitionId, paths: tuple[Path, ...], registry: PartitionRegistry, host: str
    ) -> None:
        self.partition_id = partition
        self.paths = paths
        self.cause = ""
        self.ends: tuple[EndOfPartition, ...] = ()
        self._views: list[ResultView] = []
        self._registry = registry
        self._host = host
        self._lifecycle = PartitionLifecycle(str(partition))
        self._lifecycle.apply(PartitionEvent.WRITE)

    @property
    def state(self) -> PartitionState:
        """Where it is in its life."""
        return self._lifecycle.state

    @property
    def is_finished(self) -> bool:
        """Whether it can be read."""
        return self.state is PartitionState.FINISHED

    @property
    def origin(self) -> FileOrigin:
        """What the file should hold, and where it is."""
        return FileOrigin(self.partition_id, self._host)

    def finish(self, ends: Sequence[EndOfPartition]) -> None:
        """The producer has closed the files; raises ProtocolError where their number is wrong."""
        if len(ends) != len(self.paths):
            raise ProtocolError(f"{self.partition_id}: {len(ends)} ends of {len(self.paths)} files")
        self._lifecycle.apply(PartitionEvent.FINISH)
        self.ends = tuple(ends)
        for view in self._views:
            view.start()

    def create_view(self, subpartition: int, listener: DataListener) -> ResultFileView:
        """A view for a reader on another host; any number of them. It has something when the file is finished."""
        return self._opened(ResultFileView(self, self._checked(subpartition), listener))

    def create_local_view(self, subpartition: int, listener: DataListener) -> LocalFileView:
        """A view for a reader on this host: it gives the finished file's path."""
        return self._opened(LocalFileView(self.paths[self._checked(subpartition)], listener))

    def _checked(self, subpartition: int) -> int:
        if not 0 <= subpartition < len(self.paths):
            raise ProtocolError(f"partition {self.partition_id} has no subpartition {subpartition}")
        return subpartition

    def _opened(self, view: V) -> V:
        self._views.append(view)
        if self.is_finished:
            view.start()
        return view

    def release(self, cause: BaseException | str = "") -> None:
        """End it on purpose."""
        self._end(PartitionEvent.RELEASE, cause)

    def fail(self, cause: BaseException | str) -> None:
        """Its producer failed."""
        self._end(PartitionEvent.FAIL, cause)

    def expire(self, cause: BaseException | str = "") -> None:
        """Its lease ran out."""
        self._end(PartitionEvent.EXPIRE, cause)

    def lose(self, cause: BaseException | str) -> None:
        """Its data is gone."""
        self._end(PartitionEvent.LOSE, cause)

    def _end(self, event: PartitionEvent, cause: BaseException | str) -> None:
        if self.state.is_end:
            return
        unread = not self.is_finished
        state = self._lifecycle.apply(event)
        self.cause = describe(cause)
        views, self._views = self._views, []
        for view in views:
            if unread:
                view.fail(end_error(self.partition_id, state, self.cause, self._host))
        self._registry.bury(self.partition_id)
        # Unlinking does not wait for readers: their maps stay whole.
        for path in self.paths:
            path.unlink(missing_ok=True)
            if unread:  # a killed writer leaves what it had begun
                for begun in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
                    begun.unlink(missing_ok=True)


class LocalFileView:
    """One reader on this host: told the path once, it opens the file itself."""

    def __init__(self, path: Path, listener: DataListener) -> None:
        self._path = path
        self._listener: DataListener | None = listener
        self._is_due = False
        self.failure: BaseException | None = None
        self.backlog = 0

    @property
    def is_available(self) -> bool:
        """Whether there is something to poll or a failure to pass on."""
        return self._listener is not None and (self._is_due or self.failure is not None)

    @property
    def next_is_event(self) -> bool:
        """A path is an event."""
        return self._is_due

    def start(self) -> None:
        """The file is finished."""
        self._is_due = True
        if self._listener is not None:
            self._listener()

    def fail(self, error: BaseException) -> None:
        """The file will never be finished."""
        self.failure = error
        if self._listener is not None:
            self._listener()

    def poll(self) -> BufferOrEvent | None:
        """The path, once."""
        if not self._is_due:
            return None
        self._is_due = False
        return BufferOrEvent(FILE, str(self._path).encode(), 0)

    def resume(self) -> None:
        """Do nothing: a file never blocks."""

    def on_task_event(self, payload: bytes) -> None:
        """Ignore: the producer has ended."""

    def new_buffer_size(self, size: int) -> None:
        """Ignore: a file has no buffers."""

    def acknowledge(self, last_seq: int) -> None:
        """Ignore: a file is read as often as anybody likes."""

    def release(self) -> None:
        """The reader is done; idempotent."""
        self._listener = None


class ResultFileView:
    """One remote reader of a file."""

    def __init__(self, partition: ResultPartition, subpartition: int, listener: DataListener) -> None:
        self._partition = partition
        self._subpartition = subpartition
        self._listener: DataListener | None = listener
        self._ready: deque[BufferOrEvent] = deque()
        self._chunks: Iterator[bytes] = iter(())
        self._at_end = True
        self._reading: asyncio.Future[None] | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        """The file is finished: read ahead."""
        self._chunks = _chunks(self._partition.paths[self._subpartition], self._partition.origin)
        self._at_end = False
        self._read_ahead()

    def fail(self, error: BaseException) -> None:
        """The file will never be finished."""
        self.failure = error
        if self._listener is not None:
            self._listener()

    @property
    def backlog(self) -> int:
        """Chunks that were read and wait."""
        return sum(item.data_type == DataType.DATA for item in self._ready)

    @property
    def next_is_event(self) -> bool:
        """Whether the next thing is an event."""
        return bool(self._ready) and self._ready[0].data_type != DataType.DATA

    @property
    def is_available(self) -> bool:
        """Whether there is something to poll or a failure to pass on."""
        return self._listener is not None and (bool(self._ready) or self.failure is not None)

    def poll(self) -> BufferOrEvent | None:
        """The next chunk or event."""
        item = self._ready.popleft() if self._ready else None
        self._read_ahead()
        return item

    def resume(self) -> None:
        """Do nothing: a file never blocks."""

    def on_task_event(self, payload: bytes) -> None:
        """Ignore: the producer has ended."""

    def new_buffer_size(self, size: int) -> None:
        """Ignore: chunks have one size."""

    def acknowledge(self, last_seq: int) -> None:
        """Ignore: a result is read as often as anybody likes."""

    def release(self) -> None:
        """The reader is done; idempotent."""
        self._listener = None
        self._ready.clear()

    def _read_ahead(self) -> None:
        if self._reading is None and not self._at_end and len(self._ready) < _AHEAD and self._listener is not None:
            loop = asyncio.get_running_loop()
            reading = loop.run_in_executor(None, next, self._chunks, None)
            self._reading = asyncio.ensure_future(self._take(reading))

    async def _take(self, reading: asyncio.Future[bytes | None]) -> None:
        try:
            chunk = await reading
        except (PenstockError, OSError) as error:
            self.failure = error
            self._at_end = True
        else:
            if chunk is None:
                self._at_end = True
                for event in (EndOfData(), self._partition.ends[self._subpartition]):
                    self._ready.append(BufferOrEvent(DataType.EVENT, encode_event(event), self._subpartition))
            else:
                self._ready.append(BufferOrEvent(DataType.DATA, chunk, self._subpartition))
        self._reading = None
        listener = self._listener
        if listener is not None:
            listener()
        self._read_ahead()


def _chunks(path: Path, origin: FileOrigin) -> Iterator[bytes]:
    """The file's batches as messages of the record stream, cut into chunks of one segment at most."""
    with ResultFileReader(path, origin) as reader:
        for message in reader.messages():
            view = memoryview(message)
            for start in range(0, len(view), _CHUNK):
                yield bytes(view[start : start + _CHUNK])
