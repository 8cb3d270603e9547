# SPDX-License-Identifier: Apache-2.0
"""Reading: the batches of a subpartition of some parts, each checked, and the sums of each part compared at its end.

A part is complete when a client has it, so a reader waits for the service alone. It fetches ahead no more than a
window, and holds its connections until it is at the end or closed. All calls come from one thread at a time; `cancel`
from any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import pyarrow as pa

from penstock.client.membership import Membership, new_job
from penstock.client.parts import Part, one_schema
from penstock.errors import PartitionNotProducedError, PartitionReleasedError, PenstockError, SettingError
from penstock.shuffle import ChannelDescriptor, InputGateDescriptor, PartitionId
from penstock.task.blocking import BlockingInput


class PartRows:
    """An iterator over batches; of one part in the order of writing, of several as they come."""

    def __init__(self, membership: Membership, parts: tuple[Part, ...], subpartition: int = 0) -> None:
        encoded = one_schema(parts)
        self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(encoded))
        for part in parts:
            if not 0 <= subpartition < part.subpartitions:
                raise SettingError(f"there is no subpartition {subpartition}: a part has {part.subpartitions}")
        wanted = [part for part in parts if not part.descriptor.empty]
        channels = tuple(ChannelDescriptor(part.descriptor, subpartition) for part in wanted)
        self._membership = membership
        self._is_closed = self._is_over = False
        self._host = membership.host()
        self._environment = membership.environment(self._host, waits=False)
        descriptor = InputGateDescriptor(0, self.schema, channels)
        (self._gate,) = self._environment.create_input_gates(membership.owner(new_job()), [descriptor])
        self._input = BlockingInput([self._gate] if channels else [], self._host)
        membership.note(self, is_open=True)
        try:
            self._gate.setup()
        except BaseException:
            self.close()
            raise

    def next(self) -> pa.RecordBatch | None:
        """The next batch, never an empty one; None at the end. Raises the PartitionError that says why it ends."""
        if self._is_over:
            return None
        self._check_open()
        try:
            while (received := self._input.next()) is not None:
                if received.batch is not None and received.batch.num_rows:
                    return received.batch
        except PartitionNotProducedError as error:  # a part was complete when it was given out
            self.close()
            raise self._gone(error) from error
        except BaseException:
            self.close()
            raise
        self._check_open()  # else rows that did not come any more would pass for the end
        self._is_over = True
        self.close()
        return None

    def read_all(self) -> pa.Table:
        """All batches that are left, as a table in memory."""
        return pa.Table.from_batches(list(self), self.schema)

    def cancel(self) -> None:
        """Have the call that is under way stop with TaskCancelledError, and each later one. Any thread."""
        self._host.cancel("the reader was cancelled")

    def close(self) -> None:
        """Fetch no more; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._membership.note(self, is_open=False)
        self._gate.close()
        self._environment.close()
        self._host.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise PenstockError("this reader was closed, or has failed, before it was at the end: read again")

    def _gone(self, error: PartitionNotProducedError) -> PartitionReleasedError:
        which = error.partition
        named = f"partition {PartitionId.from_wire(which)}" if which else "a part"
        gone = PartitionReleasedError(f"{named} is not there any more: it was released, or its application is over")
        gone.partition = which
        return gone

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
