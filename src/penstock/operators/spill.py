# SPDX-License-Identifier: Apache-2.0
"""Rows that a task puts aside on disk, in numbered buckets.

One file for all buckets, and another in the next folder where a disk takes no more. A file has no name from the
moment it is made, so nothing is left behind, not even after `kill -9`. A batch is cut by bucket and each part is one
Arrow message; the parts of a bucket come back in the order in which they were written. Rows with equal keys are in
one bucket, so what fits no memory at once is worked off bucket by bucket, and a bucket that is still too large is cut
again by other bits of the hash (`level`).

When not to use it: as a queue, or for rows that fit memory; every byte is written once and read once.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import NoStorageError, PenstockError
from penstock.machine.disk_work import DISKS
from penstock.operators.keys import normalised
from penstock.operators.memory import TaskMemory
from penstock.record import word_hash
from penstock.record.layout import compact, contains
from penstock.record.partitioners import scatter

BUCKETS = 64
LEVELS = 5
"""Six bits of the hash for each level, all below the high half that the exchange has used."""
_BITS = 6

Buckets = npt.NDArray[np.unsignedinteger[Any]]


def key_buckets(columns: Sequence[pa.Array], level: int) -> Buckets:
    """The bucket of each row by its keys: equal keys meet, as grouping sees them."""
    bits = word_hash([normalised(column) for column in columns]) >> np.uint64(_BITS * level)
    return (bits & np.uint64(BUCKETS - 1)).astype(np.uint8)


def emptied(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each let go when it is given."""
    held.reverse()
    while held:
        yield held.pop()


class SpillFile:
    """Batches with the same schema, in `buckets` buckets."""

    def __init__(self, schema: pa.Schema, memory: TaskMemory, buckets: int = BUCKETS) -> None:
        self.schema = schema
        self._memory = memory
        self._parts: list[list[tuple[int, int, int]]] = [[] for _ in range(buckets)]
        """Of each bucket the parts: the number of the file, the position in it, and the length."""
        self._end = 0
        self._files: list[BinaryIO] = []
        self._places: list[str] = []
        """For the ledger of disks: the files have no names."""
        self._folders = iter((memory.directory, *memory.others))
        # Dictionaries travel beside batches, so a batch that has some becomes a stream of its own.
        self._as_streams = any(contains(field.type, pa.types.is_dictionary) for field in schema)
        self._open(0, None)

    def write(self, rows: pa.RecordBatch, buckets: Buckets) -> None:
        """Put each row into its bucket, after those that are there. NoStorageError where no folder takes them."""
        for bucket, part in scatter(rows, buckets, len(self._parts)):
            data = memoryview(self._encoded(part))
            while True:
                try:
                    begin = self._append(data)
                    break
                except OSError as error:
                    self._open(len(data), error)
            self._parts[bucket].append((len(self._files) - 1, begin, len(data)))

    def _append(self, data: memoryview) -> int:
        begin = end = self._end
        began = time.perf_counter()
        while data:
            written = os.pwrite(self._files[-1].fileno(), data, end)
            end += written
            data = data[written:]
        DISKS.has_written(self._places[-1], end - begin, time.perf_counter() - began)
        self._end = end
        self._memory.spilled_bytes += end - begin
        return begin

    def _open(self, size: int, failure: OSError | None) -> None:
        """Go on in a file of the next folder that has one; NoStorageError where there is none."""
        for folder in self._folders:
            try:
                self._files.append(tempfile.TemporaryFile(dir=folder, buffering=0))  # noqa: SIM115 - see close
                self._places.append(f"{folder}/spilled")
                self._end = 0
                return
            except OSError as error:
                failure = error
        raise self._full(size, failure) from failure

    def read(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """The batches of one bucket, any number of times."""
        for file, position, length in self._parts[bucket]:
            began = time.perf_counter()
            data = self._read(self._files[file].fileno(), position, length)
            DISKS.has_read(self._places[file], length, time.perf_counter() - began)
            yield self._decoded(data)

    def _read(self, file: int, position: int, length: int) -> pa.Buffer:
        data = pa.allocate_buffer(length)
        left = memoryview(data).cast("B")
        while left:  # the system gives at most 2 GiB at once
            count = os.preadv(file, [left], position)
            if not count:
                raise PenstockError(
                    f"a spill file in {self._memory.directory} is shorter than what was written to it"
                )
            left = left[count:]
            position += count
        return data

    def size(self, bucket: int) -> int:
        """The bytes of one bucket."""
        return sum(length for _, _, length in self._parts[bucket])

    def close(self) -> None:
        """Give the space back; idempotent. A file that is never closed goes with the process."""
        for file in self._files:
            file.close()

    def _encoded(self, batch: pa.RecordBatch) -> pa.Buffer:
        columns = [compact(column) for column in batch.columns]
        if columns:
            batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if not self._as_streams:
            return batch.serialize()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue()

    def _decoded(self, data: pa.Buffer) -> pa.RecordBatch:
        if self._as_streams:
            return pa.ipc.open_stream(data).read_next_batch()
        return pa.ipc.read_record_batch(data, self.schema)

    def _full(self, size: int, error: OSError | None) -> NoStorageError:
        is_full = error is not None and error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "no space left" if is_full else str(error)
        folders = ", ".join((self._memory.directory, *self._memory.others))
        return NoStorageError(
            f"rows that exceed the task's memory could not be put aside: {size} bytes to {folders}: "
            f"{reason}. Free space there, name other folders in spark.penstock.blocking.directories, or raise "
            "spark.penstock.task.groupMemory"
        )
