# SPDX-License-Identifier: Apache-2.0
"""The writer of the `memory` shuffle service: a write waits while the partition's budget is used up."""

from __future__ import annotations

import time

import pyarrow as pa

from penstock.lifecycle.endpoints import WriterState
from penstock.shuffle import PartitionId
from penstock.shuffle.errors import PenstockError, SchemaError
from penstock.shuffle.service import fingerprint_of
from penstock.testing.memory_partition import Stored
from penstock.testing.memory_writing import Writing


class MemoryResultPartitionWriter:
    """Writes one partition into the registry; see `ResultPartitionWriter` for the promises."""

    def __init__(self, writing: Writing, schema: pa.Schema) -> None:
        self._writing = writing
        self._partition = writing.partition
        self._registry = writing.registry
        self._metrics = writing.owner.metrics
        self._types = list(zip(schema.names, schema.types, strict=True))

    @property
    def partition(self) -> PartitionId:
        """The identity of what is written."""
        return self._partition.id

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions."""
        return len(self._partition.subpartitions)

    def setup(self) -> None:
        """Make the partition known to readers."""
        self._writing.set_up()

    def write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        """Append a batch to one subpartition; waits while the partition's budget is used up."""
        if not 0 <= subpartition < self.subpartitions:
            raise IndexError(f"{self._writing} has no subpartition {subpartition}: it has {self.subpartitions}")
        self._append(batch, range(subpartition, subpartition + 1))

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Append a batch to all subpartitions, stored and counted against the budget once."""
        self._append(batch, range(self.subpartitions))

    def flush(self) -> None:
        """Nothing to do: every write is visible at once."""

    def is_available(self) -> bool:
        """True if a write would not wait."""
        with self._registry.condition:
            return self._partition.has_room()

    def finish(self) -> None:
        """Send the closing events; blocking partitions become readable."""
        with self._registry.changing():
            self._writing.check()
            self._writing.finish()

    def fail(self, cause: BaseException) -> None:
        """Give the partition up; may come from another thread and wakes a waiting write."""
        with self._registry.changing():
            self._writing.fail(cause)

    def close(self) -> None:
        """End the writing; a partition that was not finished has failed."""
        self.fail(PenstockError(f"{self._writing} was closed before it was finished"))
        self._writing.close()

    def subpartition_bytes(self) -> tuple[int, ...]:
        """The payload bytes of each subpartition of a finished blocking or hybrid partition."""
        with self._registry.condition:
            return self._partition.sizes()

    def fingerprint(self) -> int:
        """A number that depends on what was written and on nothing else; 0 before `finish`."""
        with self._registry.condition:
            return fingerprint_of(self._partition.ends()) if self._writing.state is WriterState.FINISHED else 0

    def _append(self, batch: pa.RecordBatch, targets: range) -> None:
        if list(zip(batch.schema.names, batch.schema.types, strict=True)) != self._types:
            raise SchemaError(f"{self._writing} takes {self._types}, not {batch.schema}")
        stored = Stored.of_batch(batch)
        with self._registry.changing():
            self._writing.check()
            if not self._partition.has_room():
                self._wait_for_room()
            self._partition.append(stored, targets)

    def _wait_for_room(self) -> None:
        began = time.monotonic()
        self._metrics.set("is_back_pressured", 1)
        try:
            while not self._partition.has_room():
                self._registry.condition.wait()
                self._writing.check()
        finally:
            self._metrics.set("is_back_pressured", 0)
            self._metrics.add("back_pressured_seconds", time.monotonic() - began)
