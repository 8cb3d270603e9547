# SPDX-License-Identifier: Apache-2.0
"""The writer of a stored partition, whichever service stores it.

The service's part is a `RowStore`: where the rows go, and who is told of them. Nothing is said between the rows of a
blocking partition, and it is visible when it is finished. An offer that fails fails the partition, rows and all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.errors import PenstockError, ProtocolError, StorageError, TaskCancelledError
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.plugin.rows import RowsForStore, RowSink
from penstock.shuffle import (
    EndOfData,
    EndOfPartition,
    Event,
    EventKind,
    Intake,
    OwnerContext,
    PartitionEnd,
    ResultPartitionDescriptor,
    TaskHost,
)
from penstock.shuffle.splits import Split

T = TypeVar("T")


class RowStore:
    """The base of a service's way to store one partition: it has all that a service need not say."""

    figure = "bytes_stored"
    """The metric that counts its bytes."""

    @property
    def is_finishing(self) -> bool:
        """True while `finish` has been called, and others work on it."""
        return False

    @property
    def nbytes(self) -> int:
        """The bytes of what is finished."""
        raise NotImplementedError

    def register(self) -> None:
        """Find the place of the rows: before it there is no partition that could fail."""

    def open(self) -> RowSink:
        """Begin to store."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Tell whether rows are taken now; the task's wait ends when that changes. Raises what ended the storing."""
        return True

    def written(self) -> None:
        """More rows were taken."""

    def finish(self) -> tuple[EndOfPartition, ...] | None:
        """Store what is held, and complete it; None while that is not done."""
        raise NotImplementedError

    def publish(self, ends: tuple[EndOfPartition, ...]) -> None:
        """Let readers come."""

    def abort(self, cause: BaseException) -> None:
        """Remove what was begun, and let readers know the cause."""
        raise NotImplementedError

    def explained(self, error: StorageError) -> StorageError:
        """The error of a store, with what its owner is to do."""
        return error

    def close(self) -> None:
        """Let go of what is held; idempotent."""


class StoredWriter:
    """A `ResultPartitionWriter`."""

    def __init__(
        self, host: TaskHost, owner: OwnerContext, descriptor: ResultPartitionDescriptor, store: RowStore
    ) -> None:
        self._partition = descriptor.shuffle.partition
        self._host = host
        self._metrics = owner.metrics
        self._store = store
        self._sink: RowSink | None = None
        self._rows = RowsForStore(descriptor)
        self._lifecycle = WriterLifecycle(f"writer of partition {self._partition}")

    @property
    def has_pending(self) -> bool:
        """True while the store works on its end."""
        return self._store.is_finishing

    def setup(self) -> Intake:
        """Find the place of the rows, and begin; raises what the store does where there is none."""
        self._store.register()
        self._lifecycle.move(WriterEvent.SET_UP)
        self._sink = sink = self._guarded(self._store.open)
        return self._rows.intake(sink)

    def offer(self, split: Split) -> int:
        """Take all rows, or none without room; PenstockError, and the partition has failed, if they are refused."""
        sink = self._writable()
        return split.rows if self._guarded(lambda: self._append(sink, split)) else 0

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

    def finish(self) -> PartitionEnd | None:
        """Complete the partition and make it readable; None while the store works on that."""
        self._writable()
        ends = self._guarded(self._store.finish)
        if ends is None:
            return None
        self._lifecycle.move(WriterEvent.FINISH)
        self._store.publish(ends)
        end = PartitionEnd(ends)
        # Counted once, at the end: asking each small batch for its bytes costs as much as writing it.
        self._metrics.add("rows_out", sum(each.rows for each in ends))
        self._metrics.add("bytes_out", sum(end.sizes))
        self._metrics.add(self._store.figure, self._store.nbytes)
        return end

    def close(self, cause: BaseException | None = None) -> None:
        """Give up what was not finished, rows and all; idempotent."""
        self._fail(cause or TaskCancelledError("the writer was closed before it was finished"))
        self._lifecycle.move(WriterEvent.CLOSE)
        self._sink = None
        self._store.close()

    def _append(self, sink: RowSink, split: Split) -> bool:
        if not self._store.has_room():
            return False
        self._rows.append(sink, split)
        self._store.written()
        return True

    def _fail(self, cause: BaseException) -> None:
        if self._lifecycle.state is WriterState.WRITING:
            self._lifecycle.move(WriterEvent.FAIL)
            self._store.abort(cause)

    def _writable(self) -> RowSink:
        if self._lifecycle.state is not WriterState.WRITING or self._sink is None:
            raise PenstockError(f"{self._partition}: written to while {self._lifecycle.state.value}")
        self._host.check_cancelled()
        return self._sink

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
