# SPDX-License-Identifier: Apache-2.0
"""Writing: one part, with its subpartitions; and a result of several partitions under a name.

Rules: a part is there for readers when `finish` has returned, and not before. One that is closed before that, or
whose block was left by an error, is given up, and leaves nothing at the service. So does one whose process dies: the
host service hears it from the kernel, a remote one when it has not heard of the writer for its lease. All calls of
one writer come from one thread at a time; `cancel` from any.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from penstock.client.membership import Membership, new_job
from penstock.client.names import Names
from penstock.client.parts import Kept, Part
from penstock.errors import PenstockError, SchemaError, SettingError, TaskCancelledError
from penstock.record.partitioners import PartitionerSpec
from penstock.record.record_writer import RecordWriter
from penstock.shuffle import PartitionEnd, ResultPartitionDescriptor
from penstock.shuffle.splits import Split
from penstock.task.blocking import BlockingWriter

_SLICE_BYTES = 32 << 20
_LEAST_BUFFER = 1 << 20
MOST_PARTITIONS = 4096


@dataclass(frozen=True, slots=True)
class PartShape:
    """The shape of a part to be written. With `keys` rows go to subpartitions by the hash of these columns.

    `sort_buffer`: it may hold so many bytes, if that is not what the settings say.
    """

    schema: pa.Schema
    subpartitions: int = 1
    keys: tuple[str, ...] = ()
    sort_buffer: int = 0


class ClientPartWriter:
    """Writes one part. A block of `with` finishes it at its end, and gives it up where it is left by an error."""

    def __init__(self, membership: Membership, shape: PartShape) -> None:
        subpartitions, keys = shape.subpartitions, shape.keys
        if subpartitions < 1:
            raise SettingError(f"a part has at least one subpartition, not {subpartitions}")
        self._partitioner = PartitionerSpec("hash", keys).build(subpartitions, 0) if keys else None
        self._membership = membership
        self._schema = schema = shape.schema
        self._subpartitions = subpartitions
        self._part: Part | None = None
        self._is_closed = False
        described, self._descriptor = membership.begin(new_job(), subpartitions)
        self._host = membership.host()
        self._environment = membership.environment(self._host, shape.sort_buffer)
        owner = membership.owner(self._descriptor.partition.job)
        wanted = ResultPartitionDescriptor(described, self._descriptor, schema)
        (made,) = self._environment.create_result_partition_writers(owner, [wanted])
        self._target = BlockingWriter(made, self._host, owner.metrics)
        membership.note(self, is_open=True)
        try:
            intake = self._target.setup()
        except BaseException as error:
            self.close(error)
            raise
        self._records = None
        if self._partitioner is not None:
            self._records = RecordWriter(self._partitioner, self._target, intake, -1)

    def write(self, batch: pa.RecordBatch | pa.Table, subpartition: int = 0) -> None:
        """Append rows to a subpartition; with keys the service's hash of them says to which each row goes.

        Raises SchemaError for another schema, and what the service says: StorageError, QuotaError. Then, and when it
        is cancelled, the part is given up.
        """
        self._check_open()
        if not batch.schema.equals(self._schema):
            raise SchemaError(f"rows of {self._schema} are expected, these are of {batch.schema}")
        if not 0 <= subpartition < self._subpartitions:
            raise SettingError(f"there is no subpartition {subpartition}: the part has {self._subpartitions}")
        batches = batch.to_batches() if isinstance(batch, pa.Table) else [batch]
        try:
            for each in batches:
                self._write(each, subpartition)
        except BaseException as error:
            self.close(error)
            raise

    def finish(self) -> Part:
        """Complete the part: from now on it is there for readers. The same part when it is called again."""
        if self._part is not None:
            return self._part
        self._check_open()
        try:
            end = self._target.finish() if self._records is None else self._records.finish()
        except BaseException as error:
            self.close(error)
            raise
        self._part = self._described(end)
        self._let_go()
        return self._part

    def cancel(self) -> None:
        """Have the call that is under way stop with TaskCancelledError, and each later one. Any thread."""
        self._host.cancel("the writer was cancelled")

    def close(self, cause: BaseException | None = None) -> None:
        """Give up what was not finished; idempotent."""
        if self._is_closed:
            return
        self._target.close(cause or TaskCancelledError("the writer was closed before it was finished"))
        self._let_go()
        with contextlib.suppress(PenstockError):  # a service that is gone has nothing of it
            self._membership.release(self._descriptor, self._subpartitions)

    def discard(self, cause: BaseException | None = None) -> None:
        """Give the part up, also if it is complete."""
        self.close(cause)
        part, self._part = self._part, None
        if part is not None:
            with contextlib.suppress(PenstockError):
                self._membership.release(part.descriptor, part.subpartitions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._is_closed:
            self.finish()
        self.close(error)

    def _write(self, batch: pa.RecordBatch, subpartition: int) -> None:
        if not batch.num_rows:
            return
        if self._records is not None:
            self._records.write(batch)
            return
        rows = max(1, batch.num_rows * _SLICE_BYTES // max(batch.nbytes, _SLICE_BYTES))
        for begin in range(0, batch.num_rows, rows):
            self._target.write(Split.whole(batch.slice(begin, rows), subpartition))

    def _described(self, end: PartitionEnd) -> Part:
        rows = tuple(each.rows for each in end.sums)
        encoded = self._schema.serialize().to_pybytes()
        return Part(self._descriptor, encoded, self._subpartitions, rows, end.sizes)

    def _check_open(self) -> None:
        if self._is_closed:
            raise PenstockError("this writer is finished or was given up: begin another one")

    def _let_go(self) -> None:
        self._is_closed = True
        self._membership.note(self, is_open=False)
        self._target.close()
        self._environment.close()
        self._host.close()


class ResultWriter:
    """Writes the partitions of a result, which is under its name when the block of `with` ends well."""

    def __init__(self, membership: Membership, name: str, schema: pa.Schema, partitions: int) -> None:
        if not 0 < partitions <= MOST_PARTITIONS:
            raise SettingError(f"a result has 1 to {MOST_PARTITIONS} partitions, not {partitions}")
        self._names = Names(membership)
        self._names.check(name)
        self._name = name
        buffer = membership.settings.blocking.sort_buffer
        lent = max(_LEAST_BUFFER, buffer // partitions)
        self._writers: list[ClientPartWriter] = []
        self._kept: Kept | None = None
        self._is_closed = False
        try:
            for _ in range(partitions):
                self._writers.append(ClientPartWriter(membership, PartShape(schema, sort_buffer=lent)))
        except BaseException as error:
            self.close(error)
            raise

    def write(self, batch: pa.RecordBatch | pa.Table, partition: int = 0) -> None:
        """Append rows to a partition. Errors as of `ClientPartWriter.write`: then nothing of the result stays."""
        if not 0 <= partition < len(self._writers):
            raise SettingError(f"there is no partition {partition}: the result has {len(self._writers)}")
        try:
            self._writers[partition].write(batch)
        except SettingError:
            raise
        except BaseException as error:
            self.close(error)
            raise

    def finish(self) -> Kept:
        """Complete all partitions and keep them under the name; what the user had under it goes."""
        if self._kept is None:
            try:
                self._kept = self._names.keep(self._name, tuple(each.finish() for each in self._writers))
            except BaseException as error:
                self.close(error)
                raise
        return self._kept

    def cancel(self) -> None:
        """Have the call that is under way stop with TaskCancelledError, and each later one. Any thread."""
        for writer in self._writers:
            writer.cancel()

    def close(self, cause: BaseException | None = None) -> None:
        """Give up what is not under its name; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for writer in self._writers:
            writer.discard(cause) if self._kept is None else writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._is_closed:
            self.finish()
        self.close(error)
