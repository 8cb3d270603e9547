# SPDX-License-Identifier: Apache-2.0
"""The writer of a partition that a task stores in files by itself, whichever service gives them to readers.

The service's part is a `FileStore`: where the files are, and who is told of them. Nothing is said between the rows of
a blocking partition (`RowsAlone`), and it is visible when it is finished. An offer that fails fails the partition,
files and all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.errors import PenstockError, ProtocolError, StorageError, TaskCancelledError
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.services.file_rows import FileRows, Files
from penstock.shuffle import (
    EndOfData,
    EndOfPartition,
    Event,
    EventKind,
    Intake,
    OwnerContext,
    PartitionEnd,
    PartitionId,
    ResultPartitionDescriptor,
    TaskHost,
)
from penstock.shuffle.splits import Split

T = TypeVar("T")


class FileStore(Protocol):
    """The files of one partition, and its readers' way to them."""

    @property
    def bytes_on_disk(self) -> int:
        """The bytes of what is finished."""

    def register(self) -> None:
        """Find the place of the files: before it there is no partition that could fail."""

    def open(self) -> Files:
        """Begin the files."""

    def written(self) -> None:
        """More rows are in the files."""

    def finish(self) -> tuple[EndOfPartition, ...]:
        """Complete the files."""

    def publish(self, ends: tuple[EndOfPartition, ...]) -> None:
        """Let readers come."""

    def abort(self, cause: BaseException) -> None:
        """Remove what was begun, and let readers know the cause."""

    def explained(self, error: StorageError) -> StorageError:
        """The error of a file, with what its disk's owner is to do."""

    def close(self) -> None:
        """Let go of what the files took; idempotent."""


class RowsAlone:
    """The calls of a `ResultPartitionWriter` that a blocking partition has no use for."""

    def __init__(self, partition: PartitionId) -> None:
        self._partition = partition

    def emit(self, event: Event, kind: EventKind = EventKind.IN_ORDER) -> None:
        """Refuse all but the end of the data, which needs no word: raises ProtocolError."""
        if not isinstance(event, EndOfData):
            raise ProtocolError(f"{self._partition}: a {type(event).__name__} has no place in a blocking partition")

    def end_epoch(self, payload: bytes, kind: EventKind, *, keep_overtaken: bool = False) -> None:
        """Raise ProtocolError."""
        raise ProtocolError(f"{self._partition}: a blocking partition has no epochs")

    def overtaken(self) -> None:
        """Nothing is overtaken."""

    def flush(self) -> None:
        """Do nothing: a blocking partition is visible when it is finished."""


class FileWriter(RowsAlone):
    """A `ResultPartitionWriter`."""

    has_pending = False

    def __init__(
        self, host: TaskHost, owner: OwnerContext, descriptor: ResultPartitionDescriptor, store: FileStore
    ) -> None:
        super().__init__(descriptor.shuffle.partition)
        self._host = host
        self._metrics = owner.metrics
        self._store = store
        self._files: Files | None = None
        self._rows = FileRows(descriptor)
        self._lifecycle = WriterLifecycle(f"writer of partition {self._partition}")

    def setup(self) -> Intake:
        """Find the place of the files and begin them; raises what the store does where there is none."""
        self._store.register()
        self._lifecycle.move(WriterEvent.SET_UP)
        self._files = files = self._guarded(self._store.open)
        return self._rows.intake(files)

    def offer(self, split: Split) -> int:
        """Append all rows; PenstockError, and the partition has failed, when they can't be stored."""
        files = self._writable()
        self._guarded(lambda: self._append(files, split))
        return split.rows

    def finish(self) -> PartitionEnd:
        """Complete the files and make them readable."""
        self._writable()
        ends = self._guarded(self._store.finish)
        self._lifecycle.move(WriterEvent.FINISH)
        self._store.publish(ends)
        end = PartitionEnd(ends)
        # Counted once, at the end: asking each small batch for its bytes costs as much as writing it.
        self._metrics.add("rows_out", sum(each.rows for each in ends))
        self._metrics.add("bytes_out", sum(end.sizes))
        self._metrics.add("bytes_stored", self._store.bytes_on_disk)
        return end

    def close(self, cause: BaseException | None = None) -> None:
        """Give up what was not finished, files and all; idempotent."""
        self._fail(cause or TaskCancelledError("the writer was closed before it was finished"))
        self._lifecycle.move(WriterEvent.CLOSE)
        self._files = None
        self._store.close()

    def _append(self, files: Files, split: Split) -> None:
        self._rows.append(files, split)
        self._store.written()

    def _fail(self, cause: BaseException) -> None:
        if self._lifecycle.state is WriterState.WRITING:
            self._lifecycle.move(WriterEvent.FAIL)
            self._store.abort(cause)

    def _writable(self) -> Files:
        if self._lifecycle.state is not WriterState.WRITING or self._files is None:
            raise PenstockError(f"{self._partition}: written to while {self._lifecycle.state.value}")
        self._host.check_cancelled()
        return self._files

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except StorageError as error:
            explained = self._store.explained(error)
            self._fail(explained)
            if explained is error:
                raise
            raise explained from error
        except (PenstockError, OSError) as error:
            self._fail(error)
            raise
