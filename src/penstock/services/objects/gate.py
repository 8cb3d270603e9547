# SPDX-License-Identifier: Apache-2.0
"""The gate over partitions that are objects: threads look for them and read them, within a window."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import (
    IncompleteDataError,
    PartitionError,
    PartitionLostError,
    PartitionNotProducedError,
    PartitionReleasedError,
    PenstockError,
    ProducerFailedError,
)
from penstock.lifecycle.endpoints import GateEvent, GateLifecycle
from penstock.remote.blocks import read_blocks
from penstock.services.awaited_producers import AwaitedProducers
from penstock.services.objects.places import DATA, FAILED, INDEX, NAMED, RELEASED, ObjectFolder, PartitionIndex
from penstock.services.partition_errors import about
from penstock.services.remote.channel import ChannelRows
from penstock.services.remote.places import files_of
from penstock.shuffle import (
    ChannelDescriptor,
    EndOfPartition,
    InputGateDescriptor,
    OwnerContext,
    Received,
    ShuffleDescriptor,
    TaskHost,
)

_RUN_BYTES = 4 << 20
_RUNS = 4
"""So many reads are under way, or wait for the task."""
_AGAIN_SECONDS = (0.02, 0.05, 0.1, 0.25)
_TRIES = 2
_MISSES = 4
"""After so many looks that failed or showed nothing the partition is lost."""


@dataclass(slots=True, eq=False)
class _ObjectSource:
    """One channel: looked for, then read."""

    rows: ChannelRows
    files: range
    began: float
    looking: Future[PartitionIndex | PenstockError | None] | None = None
    due: float = 0.0
    looks: int = 0
    misses: int = 0
    """The looks since the last one that showed it."""
    runs: deque[tuple[int, int]] | None = None
    """The runs of bytes that are not asked for yet."""
    reading: deque[Future[bytes]] = field(default_factory=deque)
    sums: tuple[EndOfPartition, ...] = ()


class ObjectGate:
    """An `InputGate`."""

    def __init__(
        self, host: TaskHost, owner: OwnerContext, descriptor: InputGateDescriptor, folder: ObjectFolder, late: float
    ) -> None:
        self.descriptor = descriptor
        self._host = host
        self._metrics = owner.metrics
        self._folder = folder
        self._late = late
        self._threads: ThreadPoolExecutor | None = None
        self._awaited = AwaitedProducers()
        self._sources: deque[_ObjectSource] = deque()
        self._current: Iterator[Received] = iter(())
        self._ended: _ObjectSource | None = None
        self._error: PenstockError | None = None
        self._lifecycle = GateLifecycle(f"gate {descriptor.gate} of {owner.name}")

    def setup(self) -> None:
        """Begin with the partitions that are known already."""
        self._lifecycle.move(GateEvent.SET_UP)
        self._threads = ThreadPoolExecutor(_RUNS, "objects")
        for number, channel in self._awaited.known(self.descriptor.channels):
            self._open(number, channel)

    @property
    def is_ended(self) -> bool:
        """True if every channel has ended and all of it was given."""
        return not (self._sources or self._awaited)

    def poll(self, channels: Container[int] | None = None) -> Received | None:
        """Take the batch or event that is there; None if nothing is."""
        self._host.check_cancelled()
        if self._error is not None:
            raise self._error
        for number, channel in self._awaited.arrived():
            self._open(number, channel)
        try:
            return self._next()
        except PenstockError as error:
            self._error = error
            raise

    def poll_ahead(self) -> None:
        """Nothing overtakes rows."""

    def resume_consumption(self, channel: int) -> None:
        """No channel is ever blocked."""

    def close(self) -> None:
        """Read no more; idempotent."""
        self._lifecycle.move(GateEvent.CLOSE)
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        self._sources.clear()
        self._awaited.clear()
        self._current = iter(())

    def update(self, real: ShuffleDescriptor) -> bool:
        """Put a producer where it is unknown; whether this gate waits for it. Any thread."""
        is_awaited = self._awaited.learn(real)
        if is_awaited:
            self._host.waker()()
        return is_awaited

    def _open(self, number: int, channel: ChannelDescriptor) -> None:
        try:
            files, times, _ = files_of(channel)
        except PartitionError as error:
            self._error = error
            return
        rows = ChannelRows(number, channel, self.descriptor.schema, times)
        self._sources.append(_ObjectSource(rows, files, time.monotonic()))

    def _next(self) -> Received | None:
        while True:
            received = next(self._current, None)
            if received is not None:
                if received.batch is not None:
                    self._metrics.add("rows_in", received.batch.num_rows)
                return received
            if self._ended is not None:
                self._sources.remove(self._ended)
                self._ended = None
            if not any(self._moves(source) for source in list(self._sources)):
                return None

    def _moves(self, source: _ObjectSource) -> bool:
        """Do what can be done for a channel; True if it gives something now. It goes behind the others then."""
        if source.runs is None:
            self._look(source)
        if source.runs is None:
            return False
        self._ask(source)
        if source.reading:
            if not source.reading[0].done():
                return False
            self._current = self._batches(source, source.reading.popleft().result())
        elif not source.runs:
            self._current = source.rows.end(source.sums, self._folder.root)
            self._ended = source
            return True
        else:
            return False
        self._sources.remove(source)
        self._sources.append(source)
        return True

    def _ask(self, source: _ObjectSource) -> None:
        under_way = sum(len(each.reading) for each in self._sources)
        while source.runs and (under_way < _RUNS or not source.reading):
            offset, size = source.runs.popleft()
            path = f"{self._folder.place(source.rows.wanted.source.partition)}/{DATA}"
            source.reading.append(self._begin(self._read, source, path, offset, size))
            under_way += 1

    def _look(self, source: _ObjectSource) -> None:
        """Look whether the partition is there: in a thread, and again after a while."""
        if source.looking is None:
            wait = source.due - time.monotonic()
            if wait > 0:
                self._host.wake_in(wait)
                return
            source.looking = self._begin(self._looked, source)
        if not source.looking.done():
            return
        found, source.looking = source.looking.result(), None
        if isinstance(found, PenstockError):
            raise found
        if found is not None:
            source.sums = tuple(found.sums[file] for file in source.files)
            source.runs = _runs(found, source.files)
            return
        now = time.monotonic()
        if now - source.began > self._late:
            limit = f"{self._late:g} s (spark.penstock.objects.requestTimeout)"
            raise _told(source, PartitionNotProducedError, f"was not produced within {limit}")
        source.due = now + _AGAIN_SECONDS[min(source.looks, len(_AGAIN_SECONDS) - 1)]
        source.looks += 1
        self._host.wake_in(source.due - now)

    def _begin(self, work: Callable[..., Any], *arguments: object) -> Future[Any]:
        assert self._threads is not None  # noqa: S101 - set up, and not closed
        future: Future[Any] = self._threads.submit(work, *arguments)
        wake = self._host.waker()
        future.add_done_callback(lambda _: wake())
        return future

    def _batches(self, source: _ObjectSource, data: bytes) -> Iterator[Received]:
        for head, rows in read_blocks(memoryview(data)):
            self._metrics.add("bytes_in", len(rows))
            yield from source.rows.batches(head, rows)

    # --- in threads

    def _looked(self, source: _ObjectSource) -> PartitionIndex | PenstockError | None:
        place = self._folder.place(source.rows.wanted.source.partition)
        try:
            names = self._folder.names(place)
            if RELEASED in names:
                return _told(source, PartitionReleasedError, "was released")
            if INDEX in names:
                return PartitionIndex.read(memoryview(self._folder.read(f"{place}/{INDEX}")))
            if FAILED in names:
                cause = self._folder.read(f"{place}/{FAILED}").decode(errors="replace")
                return _told(source, ProducerFailedError, f"has no rows: its producer failed: {cause}")
            if NAMED not in names:
                return self._missed(source, f"is lost: there is nothing at {place}")
            source.misses = 0
        except IncompleteDataError as error:
            return _told(source, IncompleteDataError, f"can't be read: {error}")
        except FileNotFoundError:
            return None  # it is just being released
        except OSError as error:
            return self._missed(source, f"can't be read: {error}")
        return None

    def _missed(self, source: _ObjectSource, what: str) -> PenstockError | None:
        """One look is not believed: a store may be busy, and a mount away, for a moment."""
        source.misses += 1
        return _told(source, PartitionLostError, what) if source.misses >= _MISSES else None

    def _read(self, source: _ObjectSource, path: str, offset: int, size: int) -> bytes:
        """The bytes of a run, which are whole blocks; damage is read again once."""
        for turn in range(_TRIES):
            try:
                with self._folder.filesystem.open_input_file(path) as file:
                    data: bytes = file.read_at(size, offset)
                if len(data) != size:
                    raise IncompleteDataError(f"{path} ends before {offset + size}")
                for _ in read_blocks(memoryview(data)):
                    continue
                return data
            except IncompleteDataError as error:
                if turn == _TRIES - 1:
                    raise _told(source, IncompleteDataError, f"is damaged: {error}") from error
            except FileNotFoundError as error:
                raise _told(source, PartitionReleasedError, f"was released: {path} is gone") from error
            except OSError as error:
                if turn == _TRIES - 1:
                    raise _told(source, PartitionLostError, f"can't be read: {error}") from error
        raise AssertionError


def _runs(index: PartitionIndex, files: range) -> deque[tuple[int, int]]:
    """The runs of bytes that hold the blocks of these files, as they lie in the object."""
    found: list[list[int]] = []
    for block in index.blocks:
        if block.file not in files:
            continue
        if found and found[-1][0] + found[-1][1] == block.offset and found[-1][1] + block.size <= _RUN_BYTES:
            found[-1][1] += block.size
        else:
            found.append([block.offset, block.size])
    return deque((offset, size) for offset, size in found)


def _told(source: _ObjectSource, kind: type[PenstockError], what: str) -> PenstockError:
    partition = source.rows.wanted.source.partition
    return about(partition, kind(f"partition {partition} {what}"))
