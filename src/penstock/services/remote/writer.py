# SPDX-License-Identifier: Apache-2.0
"""The writer of a partition that goes to workers of the remote service: sorts rows into blocks, and has them pushed.

Rules: a split is taken while less than half a sort buffer waits to be stored by workers, so a task holds about two of
them. `finish` gives None until all workers have committed and the manager knows.
"""

from __future__ import annotations

import concurrent.futures
import secrets

from penstock.errors import PenstockError, TaskCancelledError
from penstock.lifecycle.endpoints import WriterEvent, WriterLifecycle, WriterState
from penstock.partition.file_output import FileOptions
from penstock.partition.region_writer import RegionWriter
from penstock.remote import messages as ask
from penstock.services.file_rows import FileRows
from penstock.services.file_writer import RowsAlone
from penstock.services.remote.block_sink import BlockSink
from penstock.services.remote.client import RemoteClient
from penstock.services.remote.push_queue import PushedBlock
from penstock.services.remote.pusher import Pusher
from penstock.settings import BlockingSettings
from penstock.shuffle import (
    EndOfPartition,
    Intake,
    OwnerContext,
    PartitionEnd,
    ResultPartitionDescriptor,
    TaskHost,
)
from penstock.shuffle.splits import Split

_WRITER_BITS = 63


class RemoteWriter(RowsAlone):
    """A `ResultPartitionWriter`."""

    def __init__(
        self,
        host: TaskHost,
        owner: OwnerContext,
        descriptor: ResultPartitionDescriptor,
        settings: BlockingSettings,
        client: RemoteClient,
    ) -> None:
        super().__init__(descriptor.shuffle.partition)
        self._host = host
        self._metrics = owner.metrics
        self._client = client
        self._rows = FileRows(descriptor)
        number = secrets.randbits(_WRITER_BITS)
        wanted = descriptor.partition
        self._sink = BlockSink(number, wanted.subpartitions, self._give, is_broadcast=wanted.broadcast)
        options = FileOptions(settings.compression, settings.sort_buffer)
        name = f"partition {self._partition}"
        self._regions = RegionWriter(self._sink, name, descriptor.schema, wanted.subpartitions, options)
        self._most = settings.sort_buffer // 2
        self._begun = ask.StartPartition(self._partition, host.environment, number)
        self._pusher: Pusher | None = None
        self._ends: tuple[EndOfPartition, ...] | None = None
        self._finishing: concurrent.futures.Future[None] | None = None
        self._lifecycle = WriterLifecycle(f"writer of partition {self._partition}")

    @property
    def has_pending(self) -> bool:
        """True while it is being finished."""
        return self._finishing is not None and not self._finishing.done()

    def setup(self) -> Intake:
        """Tell the manager, which says where the rows go; StorageError, ControlError where nobody takes them."""
        self._pusher = self._client.call(self._client.pusher(self._begun, self._host.waker()), self._host)
        self._lifecycle.move(WriterEvent.SET_UP)
        return self._rows.intake(self._regions)

    def offer(self, split: Split) -> int:
        """Take all rows, or none while too many wait to be stored."""
        pusher = self._writable()
        if self._sink.nbytes - pusher.stored > self._most:
            return 0
        self._rows.append(self._regions, split)
        return split.rows

    def finish(self) -> PartitionEnd | None:
        """Push what is held, and have all of it committed; None until that is done."""
        pusher = self._writable()
        if self._finishing is None:
            self._ends = self._regions.finish()
            self._finishing = self._client.begin(pusher.finish())
        if not pusher.is_finished:
            return None
        self._lifecycle.move(WriterEvent.FINISH)
        assert self._ends is not None  # noqa: S101 - set above
        end = PartitionEnd(self._ends)
        self._metrics.add("rows_out", sum(each.rows for each in self._ends))
        self._metrics.add("bytes_out", sum(end.sizes))
        self._metrics.add("bytes_pushed", self._sink.nbytes)
        return end

    def close(self, cause: BaseException | None = None) -> None:
        """Give up what was not finished; idempotent."""
        if self._lifecycle.state is WriterState.WRITING and self._pusher is not None:
            self._regions.abort()
            cause = cause or TaskCancelledError("the writer was closed before it was finished")
            self._client.give_up(self._pusher, f"{type(cause).__name__}: {cause}")
        self._lifecycle.move(WriterEvent.CLOSE)
        self._pusher = None

    def _give(self, blocks: list[PushedBlock]) -> None:
        if self._pusher is not None:
            self._client.soon(self._pusher.add, blocks)

    def _writable(self) -> Pusher:
        self._host.check_cancelled()
        if self._lifecycle.state is not WriterState.WRITING or self._pusher is None:
            raise PenstockError(f"{self._partition}: written to while {self._lifecycle.state.value}")
        if self._pusher.error is not None:
            raise self._pusher.error
        return self._pusher
