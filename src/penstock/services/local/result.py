# SPDX-License-Identifier: Apache-2.0
"""Blocking partitions of the `local` service: one file per subpartition, written and read by the tasks themselves.

The environment process knows the file and owns its life; the bytes never pass through it when the reader is on
the same host. A reader on another host goes through a `SegmentInputGate`, and its environment fetches the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from penstock.partition.result_file import FileOrigin, ResultFileReader, ResultFileWriter
from penstock.services.local.attachment import Attachment
from penstock.shuffle import (
    EndOfData,
    EndOfPartition,
    Event,
    InputGateDescriptor,
    OwnerContext,
    PartitionId,
    Received,
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
        self._attachment.call("local.fail_result", message, timeout=10)

    def close(self) -> None:
        """Give up what was not finished; idempotent."""
        self.fail(TaskCancelledError("the writer was closed before it was finished"))

    def _check_writing(self) -> None:
        if self._state != "writing":
            raise PenstockError(f"{self.partition}: written to while {self._state}")


class ResultFileGate:
    """An `InputGate` over result files of this host, one channel after the other."""

    def __init__(self, attachment: Attachment, owner: OwnerContext, descriptor: InputGateDescriptor) -> None:
        self._attachment = attachment
        self._metrics = owner.metrics
        self._descriptor = descriptor
        self._paths: list[Path] = []
        self._items: Iterator[Received] = iter(())

    @property
    def descriptor(self) -> InputGateDescriptor:
        """What this gate was made from."""
        return self._descriptor

    def setup(self) -> None:
        """Ask the environment for the files; raises the PartitionError that says why one can't be read."""
        for channel in self._descriptor.channels:
            message = {"partition": channel.source.partition.to_wire(), "subpartition": channel.subpartition}
            self._paths.append(Path(self._attachment.call("local.locate_result", message, timeout=60)["path"]))
        self._items = self._read()

    def next(self, timeout: float | None = None) -> Received | None:
        """The next batch or event, or None at the end."""
        return next(self._items, None)

    def send_task_event(self, channel: int, payload: bytes) -> None:
        """Refuse: the producer has ended."""
        raise PenstockError(
            f"channel {channel} is a finished file: no producer takes an event of {len(payload)} bytes"
        )

    def resume_consumption(self, channel: int) -> None:
        """Do nothing: a file never blocks."""

    def close(self) -> None:
        """Close the files; idempotent."""
        self._items = iter(())

    def _read(self) -> Iterator[Received]:
        for channel, path in enumerate(self._paths):
            source = self._descriptor.channels[channel].source
            reader = ResultFileReader(path, FileOrigin(source.partition, source.environment))
            for batch in reader:
                self._attachment.check_cancelled()
                self._metrics.add("bytes_in", batch.nbytes)
                yield Received(channel, batch)
            summary = reader.summary
            yield Received(channel, event=EndOfData())
            yield Received(channel, event=EndOfPartition(summary.rows, summary.bytes, summary.checksum))
