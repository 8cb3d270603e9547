# SPDX-License-Identifier: Apache-2.0
"""A channel whose rows are extents of a file that a service gives out: what has come, in order, and why none does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import PartitionError, PartitionLostError
from penstock.partition.file_input import FileOrigin
from penstock.plugin.partition_errors import about
from penstock.services.fetching.extent_batches import ExtentBatches
from penstock.shuffle import ChannelDescriptor, Received

if TYPE_CHECKING:
    import pyarrow as pa


class ExtentChannel:
    """The base of a `FetchedChannel`: a service says what it wants, and puts what has come into `_batches`."""

    def __init__(self, number: int, wanted: ChannelDescriptor, schema: pa.Schema, path: str) -> None:
        source = wanted.source
        self.number = number
        self.wanted = wanted
        self._origin = FileOrigin(source.partition, source.address.removeprefix("tcp://"))
        self._rows = ExtentBatches(number, schema, self._origin, path)
        self._batches: deque[Iterator[Received]] = deque()

    def next(self) -> Received | None:
        """The next batch or event that is there. Raises IncompleteDataError for what is not as it was written."""
        while self._batches:
            received = next(self._batches[0], None)
            if received is not None:
                return received
            self._batches.popleft()
        return None

    def lose(self, cause: str) -> PartitionLostError:
        """Its service is gone; the error that the reader gets."""
        error = self._error(PartitionLostError, f"is lost: {cause}")
        assert isinstance(error, PartitionLostError)  # noqa: S101 - what it was made from
        return error

    def _error(self, kind: type[PartitionError], what: str) -> PartitionError:
        return about(self.wanted.source.partition, kind(f"{self._origin} {what}"))
