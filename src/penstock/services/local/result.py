# SPDX-License-Identifier: Apache-2.0
"""Blocking partitions of the `local` service: one file per subpartition, written by the task itself.

The environment process knows the files and owns their life; the bytes pass through it only on their way to a
reader on another host. A reader on this host is given the path.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.partition.result_file import ResultFileWriter
from penstock.services.local.attachment import Attachment
from penstock.shuffle import (
    Event,
    OwnerContext,
    PartitionId,
    ResultPartitionDescriptor,
)
from penstock.shuffle.errors import PenstockError, TaskCancelledError


class ResultFilePartitionWriter:
    """A `ResultPartitionWriter` of a blocking partition: one file per subpartition."""

    def __init__(self, attachment: Attachment, owner: OwnerContext, descriptor: ResultPartitionDescriptor) -> None:
        self._attachment = attachment
        self._descriptor = descriptor
        self._metrics = owner.metrics
        self._files: list[ResultFileWriter] = []
        self._state = "created"

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""
        return self._descriptor.shuffle.partition

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return self._descriptor.partition.subpartitions

    def setup(self) -> None:
        """Register the partition and open its files."""
        message = {"partition": self.partition.to_wire(), "subpartitions": self.subpartitions}
        answer = self._attachment.call("local.open_result", message)
        self._state = "writing"
        for path in answer["paths"]:
            self._files.append(ResultFileWriter(Path(path), self._descriptor.schema, self.partition))

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to the subpartition's file."""
        self._check_writing()
        self._attachment.check_cancelled()
        self._files[subpartition].write(batch)
        self._metrics.add("rows_out", batch.num_rows)
        self._metrics.add("bytes_out", batch.nbytes)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all files."""
        for subpartition in range(self.subpartitions):
            self.write(batch, subpartition)

    def broadcast_event(self, event: Event) -> None:
        """Refuse: what is read again and again carries no events but its end."""
        raise PenstockError(f"{self.partition}: a blocking partition takes no event {event}")

    def flush(self) -> None:
        """Do nothing: a blocking partition is visible when it is finished."""

    def is_available(self) -> bool:
        """Always: a file takes what it is given."""
        return True

    def take_task_events(self) -> list[tuple[int, bytes]]:
        """None: whoever reads a finished partition has no producer to speak to."""
        return []

    def finish(self) -> None:
        """Close the files and make them readable."""
        self._check_writing()
        ends = []
        for file in self._files:
            summary = file.finish()
            ends.append((summary.rows, summary.bytes, summary.checksum))
        self._state = "finished"
        self._attachment.call("local.finish_result", {"partition": self.partition.to_wire(), "ends": ends})

    def fail(self, cause: BaseException) -> None:
        """Remove the files; readers get ProducerFailedError."""
        if self._state != "writing":
            return
        self._state = "failed"
        for file in self._files:
            file.abort()
        message = {"partition": self.partition.to_wire(), "cause": f"{type(cause).__name__}: {cause}"}
        self._attachment.hand_in("local.fail_result", message)

    def close(self) -> None:
        """Give up what was not finished; idempotent."""
        self.fail(TaskCancelledError("the writer was closed before it was finished"))

    def _check_writing(self) -> None:
        if self._state != "writing":
            raise PenstockError(f"{self.partition}: written to while {self._state}")
