# SPDX-License-Identifier: Apache-2.0
"""The layout of a hybrid partition: as of a pipelined one in shared segments, and where there are none in a file.

The writer stores by itself what it has no segments at hand for, once the environment has told it where. Something is
pending in the middle of a message only: for one whose data was stored.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.partition.stretched_file import StretchedFile
from penstock.record.framing import HEADER, Message
from penstock.services.local.builders import Builders, Segments
from penstock.services.local.messages import MessageMaker, WriterSums
from penstock.services.local.own_file import OwnFile
from penstock.shuffle import ResultPartitionDescriptor


class HybridSegments:
    """A `Layout`. `reserve` bytes are kept free on the disk."""

    def __init__(
        self, end: Segments, builders: Builders, messages: MessageMaker, sums: WriterSums, stored: StoredPart
    ) -> None:
        self._end = end
        self._builders = builders
        self._messages = messages
        self._sums = sums
        self._stored = stored
        self._next: tuple[int, Message] | None = None
        """The message that comes when the segments are given up, for one in the other place."""

    @property
    def has_pending(self) -> bool:
        """True if a part of what was put waits for a segment."""
        return self._next is not None or self._builders.has_pending

    def put(self, target: int, batch: pa.RecordBatch) -> int:
        """All of the batch."""
        message = self._messages.whole(batch)
        self._sums.add(target, batch.num_rows, message)
        self._append(target, message)
        return int(batch.num_rows)

    def relieve(self) -> bool:
        """Lay out what is pending, as far as there is room; whether that was all."""
        if self._builders.relieve() and self._next is not None:
            (target, message), self._next = self._next, None
            self._append(target, message)
        return not self.has_pending

    def show(self) -> None:
        """Nothing: a segment of which readers see a piece could be neither stored nor forgotten."""

    def commit(self) -> None:
        """Make everything visible, as far as there is room."""
        if self.relieve():
            self._builders.commit()
            self._end.ship()
            self._stored.commit()

    def finish(self) -> bool:
        """Make everything visible, and give all segments up; False where there is no room."""
        if not self.relieve() or not self._builders.finish():
            return False
        self._end.ship()
        self._stored.finish()
        return True

    def drop(self, *, is_finished: bool) -> None:
        """Forget everything; the file of a finished partition stays."""
        self._builders.drop()
        self._next = None
        if not is_finished:
            self._stored.drop()

    def _append(self, target: int, message: Message) -> None:
        """If the segments for a message are at hand, put it into memory; else into the file, if there is one by now.

        A writer that stores goes on until it has told of what it has stored. One that begins to store finishes its
        open segments, as the environment can neither store nor free those.
        """
        stored = self._stored
        if not stored.is_under_way:
            needed = -(-(HEADER.size + message.length) // self._messages.segment_size)
            has_room = self._end.at_hand >= needed or self._end.look() >= needed
            if stored.is_chosen == has_room and stored.is_known:
                if not self._builders.finish():
                    self._next = target, message
                    return
                self._end.ship()
                stored.commit()  # rows that follow in the other place come after it
                stored.choose(not has_room)
        if stored.is_chosen:
            stored.append(target, message)
        else:
            self._builders.append(target, message.parts)


class StoredPart:
    """The part of a hybrid partition that its writer stores: nothing before the environment has said where."""

    def __init__(self, end: Segments, descriptor: ResultPartitionDescriptor, reserve: int) -> None:
        self._end = end
        self._descriptor = descriptor
        self._reserve = reserve
        self._file: OwnFile | None = None
        self.is_chosen = False
        """True if messages go here now."""

    @property
    def is_known(self) -> bool:
        """True if there is a place for it."""
        return self._file is not None

    @property
    def is_under_way(self) -> bool:
        """True if there is something that was not told yet."""
        return self._file is not None and self._file.is_under_way

    def choose(self, chosen: bool) -> None:
        """Have messages go here from now on, or into segments."""
        self.is_chosen = chosen

    def on_store(self, folder: str) -> None:
        """Store in this folder what memory has no room for."""
        descriptor = self._descriptor
        count = descriptor.partition.subpartitions
        file = StretchedFile(descriptor.shuffle.partition, count, lambda: Path(folder), self._reserve)
        self._file = OwnFile(file, self._end.tell_stored)

    def append(self, target: int, message: Message) -> None:
        """Store a message. StorageError where it can't be stored."""
        if self._file is not None:
            self._file.append(target, message.parts)

    def commit(self) -> None:
        """Tell of all that was stored."""
        if self._file is not None:
            self._file.commit()

    def finish(self) -> None:
        """The file is complete."""
        if self._file is not None:
            self._file.finish()

    def drop(self) -> None:
        """Forget everything, file and all."""
        if self._file is not None:
            self._file.drop()
