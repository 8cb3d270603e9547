# SPDX-License-Identifier: Apache-2.0
"""Writes a hybrid result partition: as a pipelined one into shared segments, and where there are none into a file.

The writer stores by itself what it has no segments at hand for, once the environment has told it where. It waits for
a segment in the middle of a message only: for one whose data was stored. A partition that can't be stored fails the
next write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.lifecycle.endpoints import WriterState
from penstock.link.frames import stored_frame
from penstock.partition.extents import Extent
from penstock.partition.stretched_file import StretchedFile
from penstock.record.framing import HEADER, Message
from penstock.services.local.builders import OwnFile
from penstock.services.local.port import Port
from penstock.services.local.writer import SegmentPartitionWriter
from penstock.shuffle import OwnerContext, ResultPartitionDescriptor
from penstock.shuffle.errors import StorageError
from penstock.shuffle.host import TaskHost


class HybridPartitionWriter(SegmentPartitionWriter):
    """A `ResultPartitionWriter` that never waits for a reader. `reserve` bytes are kept free on the disk."""

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        *,
        verify: bool = True,
        reserve: int = 0,
    ) -> None:
        super().__init__(host, owner, descriptor, verify=verify)
        self._reserve = reserve
        self._file: OwnFile | None = None
        self._is_storing = False

    def subpartition_bytes(self) -> tuple[int, ...]:
        """The payload bytes of each subpartition; empty before `finish`."""
        return tuple(end.bytes for end in self._ends)

    def on_store(self, folder: str) -> None:
        """Store in this folder what memory has no room for."""
        descriptor = self._descriptor.partition
        file = StretchedFile(self.partition, descriptor.subpartitions, lambda: Path(folder), self._reserve)
        self._file = OwnFile(file, self._note_stored)

    def _listen(self) -> Port:
        port = super()._listen()
        port.on_store = self.on_store
        return port

    def _append(self, target: int, message: Message) -> None:
        """If the segments for a message are at hand, put it into memory; else into the file, if there is one by now.

        A writer that stores goes on until it has told of what it has stored. One that begins to store lets go of its
        open segments, as nobody can store or forget those.
        """
        if self._file is None or not self._file.is_under_way:
            needed = -(-(HEADER.size + message.length) // self._plane.memory.segment_size)
            if len(self._end.segments) < needed:
                self._host.look()
            has_room = len(self._end.segments) >= needed
            if self._is_storing == has_room and self._file is not None:
                self._builders.finish()
                self._commit()  # rows that follow in the other place come after it
                self._is_storing = not has_room
        if self._is_storing and self._file is not None:
            with self._first_cause():
                self._file.append(target, message.parts)
        else:
            self._builders.append(target, message.parts)

    def _commit(self) -> None:
        super()._commit()
        if self._file is not None:
            with self._first_cause():
                self._file.commit()

    def _complete(self) -> None:
        super()._complete()
        if self._file is not None:
            with self._first_cause():
                self._file.finish()

    def _show_all(self) -> None:
        """Nothing: a segment of which readers see a piece could be neither stored nor forgotten."""

    @contextmanager
    def _first_cause(self) -> Iterator[None]:
        """The environment removes the folder of a partition that it gives up: its reason is the error then."""
        try:
            yield
        except StorageError as error:
            self._host.look()
            if self._error is not None:
                raise self._error from error
            raise

    def _drop(self) -> None:
        super()._drop()
        if self._file is not None and self._end.state is not WriterState.FINISHED:
            self._file.drop()

    def _note_stored(self, extents: list[tuple[int, Extent]]) -> None:
        records = [(target, each.length, each.offset, each.checksum) for target, each in extents]
        size = sum(each.length for _, each in extents)
        self._metrics.add("bytes_out", size)
        self._metrics.add("bytes_stored", size)
        self._plane.send(stored_frame(self._end.port, records))
