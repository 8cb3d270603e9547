# SPDX-License-Identifier: Apache-2.0
"""The gate over partitions that are objects: threads look for them and read them, within a window."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import (
    IncompleteDataError,
    PartitionLostError,
    PartitionNotProducedError,
    PartitionReleasedError,
    PenstockError,
    ProducerFailedError,
)
from penstock.plugin.gate import StoredGate
from penstock.plugin.partition_errors import unreadable
from penstock.remote.blocks import read_blocks
from penstock.services.objects.places import DATA, FAILED, INDEX, NAMED, RELEASED, ObjectFolder, PartitionIndex
from penstock.services.remote.channel import ChannelRows
from penstock.services.remote.places import files_of
from penstock.shuffle import (
    ChannelDescriptor,
    EndOfPartition,
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    Received,
    TaskHost,
)

_RUN_BYTES = 4 << 20
_RUNS = 4
"""The most reads that are under way, or wait for the task."""
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

    @property
    def partition(self) -> PartitionId:
        """The partition that it reads."""
        return self.rows.wanted.source.partition


class ObjectGate(StoredGate):
    """An `InputGate`."""

    def __init__(
        self, host: TaskHost, owner: OwnerContext, descriptor: InputGateDescriptor, folder: ObjectFolder, late: float
    ) -> None:
        super().__init__(host, owner, descriptor)
        self._folder = folder
        self._late = late
        self._threads: ThreadPoolExecutor | None = None
        self._sources: deque[_ObjectSource] = deque()
        self._current: Iterator[Received] = iter(())
        self._ended: _ObjectSource | None = None

    def has_open(self) -> bool:
        """Tell whether a channel that was opened has not ended."""
        return bool(self._sources)

    def open(self, channels: Sequence[tuple[int, ChannelDescriptor]]) -> None:
        """Look for partitions from now on; PartitionError for a range that is none."""
        for number, channel in channels:
            files, times, _ = files_of(channel)
            rows = ChannelRows(number, channel, self.descriptor.schema, times)
            self._sources.append(_ObjectSource(rows, files, time.monotonic()))

    def next(self) -> Received | None:
        """The batch or event that is there; None, and a thread ends the task's wait, or the time of a next look."""
        while True:
            received = next(self._current, None)
            if received is not None:
                return received
            if self._ended is not None:
                self._sources.remove(self._ended)
                self._ended = None
            if not any(self._moves(source) for source in list(self._sources)):
                return None

    def let_go(self) -> None:
        """Read no more; idempotent."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        self._sources.clear()
        self._current = iter(())

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
            path = f"{self._folder.place(source.partition)}/{DATA}"
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
            raise unreadable(source.partition, PartitionNotProducedError, f"was not produced within {limit}")
        source.due = now + _AGAIN_SECONDS[min(source.looks, len(_AGAIN_SECONDS) - 1)]
        source.looks += 1
        self._host.wake_in(source.due - now)

    def _begin(self, work: Callable[..., Any], *arguments: object) -> Future[Any]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_RUNS, "objects")
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
        place = self._folder.place(source.partition)
        try:
            names = self._folder.names(place)
            if RELEASED in names:
                return unreadable(source.partition, PartitionReleasedError, "was released")
            if INDEX in names:
                return PartitionIndex.read(memoryview(self._folder.read(f"{place}/{INDEX}")))
            if FAILED in names:
                cause = self._folder.read(f"{place}/{FAILED}").decode(errors="replace")
                return unreadable(source.partition, ProducerFailedError, f"has no rows: its producer failed: {cause}")
            if NAMED not in names:
                return self._missed(source, f"is lost: there is nothing at {place}")
            source.misses = 0
        except IncompleteDataError as error:
            return unreadable(source.partition, IncompleteDataError, f"can't be read: {error}")
        except FileNotFoundError:
            return None  # it is just being released
        except OSError as error:
            return self._missed(source, f"can't be read: {error}")
        return None

    def _missed(self, source: _ObjectSource, what: str) -> PenstockError | None:
        """One look is not believed: a store may be busy, and a mount away, for a moment."""
        source.misses += 1
        return unreadable(source.partition, PartitionLostError, what) if source.misses >= _MISSES else None

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
                    raise unreadable(source.partition, IncompleteDataError, f"is damaged: {error}") from error
            except FileNotFoundError as error:
                raise unreadable(source.partition, PartitionReleasedError, f"was released: {path} is gone") from error
            except OSError as error:
                if turn == _TRIES - 1:
                    raise unreadable(source.partition, PartitionLostError, f"can't be read: {error}") from error
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
