# SPDX-License-Identifier: Apache-2.0
"""The rows of a partition that go to workers of the remote service: sorted into blocks, and pushed.

Rules: a split is taken while less than half a sort buffer waits to be stored by workers, so a task holds about two of
them. `finish` gives None until all workers have committed and the manager knows.
"""

from __future__ import annotations

import concurrent.futures
import secrets

from penstock.partition.arrival_writer import ArrivalWriter
from penstock.partition.file_output import FileOptions
from penstock.partition.region_writer import RegionWriter
from penstock.plugin.writer import RowStore
from penstock.remote import messages as ask
from penstock.services.remote.block_sink import BlockSink
from penstock.services.remote.client import RemoteClient
from penstock.services.remote.push_queue import PushedBlock
from penstock.services.remote.pusher import Pusher
from penstock.settings import BlockingSettings
from penstock.shuffle import EndOfPartition, ResultPartitionDescriptor, TaskHost

_WRITER_BITS = 63


class PushedRows(RowStore):
    """The store of one partition."""

    figure = "bytes_pushed"

    def __init__(
        self, host: TaskHost, descriptor: ResultPartitionDescriptor, settings: BlockingSettings, client: RemoteClient
    ) -> None:
        self._host = host
        self._client = client
        number = secrets.randbits(_WRITER_BITS)
        partition, wanted = descriptor.shuffle.partition, descriptor.partition
        self._sink = BlockSink(number, wanted.subpartitions, self._give, is_broadcast=wanted.broadcast)
        options = FileOptions(settings.compression, settings.sort_buffer)
        form = ArrivalWriter if ArrivalWriter.fits(wanted.subpartitions, options) else RegionWriter
        self._rows = form(self._sink, f"partition {partition}", descriptor.schema, wanted.subpartitions, options)
        self._most = settings.sort_buffer // 2
        self._begun = ask.StartPartition(partition, host.environment, number)
        self._pusher: Pusher | None = None
        self._ends: tuple[EndOfPartition, ...] | None = None
        self._finishing: concurrent.futures.Future[None] | None = None

    @property
    def is_finishing(self) -> bool:
        """True while workers commit."""
        return self._finishing is not None and not self._finishing.done()

    @property
    def nbytes(self) -> int:
        """The bytes that were given out."""
        return self._sink.nbytes

    def register(self) -> None:
        """Ask the manager where the rows go; StorageError where no worker takes them, ControlError."""
        self._pusher = self._client.call(self._client.pusher(self._begun, self._host.waker()), self._host)

    def open(self) -> ArrivalWriter | RegionWriter:
        """Begin to cut blocks, or to sort."""
        return self._rows

    def has_room(self) -> bool:
        """Tell whether few enough rows wait to be stored; raises what has ended the pushing."""
        return self._sink.nbytes - self._pushing().stored <= self._most

    def finish(self) -> tuple[EndOfPartition, ...] | None:
        """Push what is held, and have all of it committed; None until that is done."""
        pusher = self._pushing()
        if self._finishing is None:
            self._ends = self._rows.finish()
            self._finishing = self._client.begin(pusher.finish())
        return self._ends if pusher.is_finished else None

    def abort(self, cause: BaseException) -> None:
        """Push no more, and tell the manager, which tells readers."""
        self._rows.abort()
        if self._pusher is not None:
            self._client.give_up(self._pusher, f"{type(cause).__name__}: {cause}")

    def close(self) -> None:
        """Forget the pusher."""
        self._pusher = None

    def _give(self, blocks: list[PushedBlock]) -> None:
        if self._pusher is not None:
            self._client.soon(self._pusher.add, blocks)

    def _pushing(self) -> Pusher:
        assert self._pusher is not None  # noqa: S101 - registered, and not closed
        if self._pusher.error is not None:
            raise self._pusher.error
        return self._pusher
