# SPDX-License-Identifier: Apache-2.0
"""Reads an input gate out of shared segments: every slice is copied out and its segment recycled at once.

The environment hands over at most a small window of slices per gate, channel after channel, so no channel waits for
another and user code that keeps batches can't hold network memory. Of data in files of this host the gate is told,
and it reads them itself: finished partitions, and extents of hybrid ones in order with their slices.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.buffer.arrow import PayloadFormat
from penstock.link.calls import ReportMissingFile
from penstock.link.control import unpack
from penstock.link.frames import EXTENTS, FILE
from penstock.partition.extent_reader import MAPPED, ExtentReader
from penstock.partition.sort_buffer import joined
from penstock.partition.stored import StoredRows
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler
from penstock.services.local.gate_end import GateEnd, Item
from penstock.shuffle import EndOfData, EndOfPartition, InputGateDescriptor, OwnerContext, PartitionId, Received
from penstock.shuffle.errors import IncompleteDataError, PartitionLostError, PenstockError
from penstock.shuffle.events import decode_event
from penstock.shuffle.host import TaskHost

BATCH_BYTES = 128 << 10
"""Batches out of files are joined up to this many bytes."""


class SegmentInputGate(GateEnd):
    """An `InputGate` over the data plane of its host."""

    def __init__(
        self, host: TaskHost, owner: OwnerContext, descriptor: InputGateDescriptor, *, verify: bool = True
    ) -> None:
        super().__init__(host, owner, descriptor)
        self._metrics = owner.metrics
        codec = BatchCodec(descriptor.schema)
        self._counters = [CompletenessCounter() for _ in descriptor.channels]
        self._assemblers = [MessageAssembler(codec, counter, verify=verify) for counter in self._counters]
        self._files: deque[Iterator[Received]] = deque()
        self._ready: deque[Received] = deque()
        self._verify = verify
        self._size = PayloadFormat(descriptor.schema).size

    def next(self, timeout: float | None = None) -> Received | None:
        """The next batch or event, or None when every channel has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            if self._files:
                self._read_file()
            elif self._incoming:
                self._take(*self._incoming.popleft())
            elif not self._open:
                self._ship()
                return None
            else:
                self._wait(deadline)
        return self._ready.popleft()

    def close(self) -> None:
        """Cancel what is still open and give back all buffers; idempotent."""
        super().close()
        self._ready.clear()
        self._files.clear()

    def on_event(self, channel: int, data_type: int, payload: bytes) -> None:
        """Note an event of a channel."""
        self._incoming.append((channel, unpack(payload) if data_type in (FILE, EXTENTS) else payload))

    def _wait(self, deadline: float | None) -> None:
        self._ship()
        begin = time.monotonic()
        left = None if deadline is None else max(0.0, deadline - begin)
        try:
            self._host.wait(lambda: self._incoming, left)
        finally:
            self._metrics.add("idle_seconds", time.monotonic() - begin)

    def _take(self, channel: int, item: Item) -> None:
        if isinstance(item, tuple):
            segment, offset, length = item
            self._metrics.add("bytes_in", length)
            batches = self._assemblers[channel].feed(self._memory.view(segment, offset, length))
            self._recycle(segment)
            self._ready.extend(Received(channel, batch) for batch in batches)
        elif isinstance(item, bytes):
            event = decode_event(item)
            if isinstance(event, EndOfPartition):
                self._check_end(channel, event)
                self._open -= 1
            self._ready.append(Received(channel, event=event))
        elif isinstance(item, dict):
            self._files.append(self._read(channel, item))
        else:
            self._ship()  # whoever reads may be long in coming to its close
            raise item

    def _read_file(self) -> None:
        received = next(self._files[0], None)
        if received is not None:
            self._ready.append(received)
            self._files.rotate(-1)
        else:
            self._files.popleft()

    def _read(self, channel: int, message: dict[str, Any]) -> Iterator[Received]:
        """Read files of this host: pieces among the channel's slices, or its whole range, which then has an end."""
        stored = StoredRows.from_message(message)
        try:
            yield from self._read_stored(channel, stored)
        except PartitionLostError as error:
            raise self._answer(stored.origin.partition, error) from error
        if stored.count:
            end = EndOfPartition(*message["end"])
            self._check_end(channel, end)
            self._open -= 1
            yield Received(channel, event=EndOfData())
            yield Received(channel, event=end)

    def _read_stored(self, channel: int, stored: StoredRows) -> Iterator[Received]:
        """Stored rows. A batch in one piece is not copied, but small ones are joined: each costs whoever gets it."""
        pieces = stored.find()
        with ExtentReader(stored.folder, stored.origin) as reader:
            if not stored.count:
                for piece in pieces:
                    reader.open(piece.extent.file)  # before the environment may let the files go
                self.resume_consumption(channel)  # the next ones come while these are read
            for batch in joined(self._stored_batches(channel, reader.read(pieces)), BATCH_BYTES):
                yield Received(channel, batch)

    def _stored_batches(self, channel: int, views: Iterator[memoryview]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Batches with their bytes, as much as is not joined where they lie over a map."""
        for view in views:
            self._host.check_cancelled()
            self._metrics.add("bytes_in", len(view))
            self._metrics.add("disk_bytes_in", len(view))
            is_mapped = len(view) >= MAPPED
            for batch in self._assemblers[channel].feed(view, is_kept=True):
                yield batch, BATCH_BYTES if is_mapped else self._size(batch)

    def _answer(self, partition: PartitionId, error: PartitionLostError) -> PenstockError:
        """A file is gone: the environment knows whether the partition was released meanwhile, or is lost."""
        try:
            self._host.ask(ReportMissingFile(partition, str(error)))
        except PenstockError as answer:
            return answer
        return error

    def _check_end(self, channel: int, end: EndOfPartition) -> None:
        self._assemblers[channel].finish()
        source = self._descriptor.channels[channel].source
        where = f"partition {source.partition} (host environment {source.environment or 'unknown'})"
        if not self._verify:
            return
        try:
            self._counters[channel].verify(end, where)
        except IncompleteDataError as error:
            error.partition = source.partition.to_wire()
            raise
