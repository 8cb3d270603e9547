# SPDX-License-Identifier: Apache-2.0
"""The simplest blocking partition: one file per subtask, written by the task, read in any order any number of times.

Rules:

- Written under a temporary name and renamed by `finish`, so a file under its own name is complete.
- Everything is covered: a checksum per batch, one over the header, one over the footer, zeroes in the padding, and
  the counts at the end. A flipped bit or a cut is an IncompleteDataError naming partition, attempt, host and file.
- Written batch by batch with `writev`, never gathered; read through a memory map, batches lie over the map.
- No fsync. A result outlives its task, not its host's crash: after one it is produced again, and should a torn file
  be left behind, its checksums say so.

`docs/result-file.md` describes the format. Limit: the map must not be cut while it is read (SIGBUS); files are only
ever replaced and unlinked, which leaves a map intact.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import xxhash

from penstock.buffer import batch_payload, has_dictionaries, read_payload
from penstock.shuffle.errors import IncompleteDataError, PartitionLostError, PenstockError
from penstock.shuffle.ids import PartitionId

MAGIC = b"PENSTOCK"
VERSION = 1
HEADER = struct.Struct("<8sIIQQqqQ")
"""Magic, version, flags, bytes of schema, bytes of dataset name, partition index, attempt, checksum of both texts."""
CHECKSUM = struct.Struct("<Q")
BLOCK = struct.Struct("<QQQ")
"""Bytes of payload, xxh3_64 of it, rows."""
MESSAGE = struct.Struct("<QQ")
"""The header of a message on the record stream: length and checksum, as in a block."""
FOOTER = struct.Struct("<QQQQ")
"""Batches, rows, bytes of payload, sum of the batches' checksums modulo 2**64."""
TAIL = struct.Struct("<Q8s")
"""Checksum of the footer, magic."""
SELF_CONTAINED = 1
"""Flag: every payload is an IPC stream of its own, because the schema holds dictionaries."""

_MASK = (1 << 64) - 1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_START = HEADER.size + CHECKSUM.size
_END = FOOTER.size + TAIL.size


@dataclass(frozen=True, slots=True)
class ResultFileSummary:
    """What a file holds. `bytes` are those of the payloads; `checksum` does not depend on the batches' order."""

    rows: int
    bytes: int
    checksum: int
    batches: int


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """Which partition a file should hold, and the host it is on."""

    partition: PartitionId
    host: str = ""

    def __str__(self) -> str:
        on = f" on {self.host}" if self.host else ""
        return f"partition {self.partition} (attempt {self.partition.attempt}){on}"


class ResultFileWriter:
    """Writes one file. Life: any number of `write`, then `finish`; `abort` instead leaves nothing behind."""

    __slots__ = (
        "_batches",
        "_bytes",
        "_checksum",
        "_fd",
        "_partition",
        "_rows",
        "_schema",
        "_self_contained",
        "_temporary",
        "path",
    )

    def __init__(self, path: str | os.PathLike[str], schema: pa.Schema, partition: PartitionId) -> None:
        self.path = Path(path)
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        self._schema = schema
        self._partition = partition
        self._self_contained = has_dictionaries(schema)
        self._rows = self._bytes = self._checksum = self._batches = 0
        self._fd = -1
        try:
            self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failure(error) from error
        self._write_all(_header(schema, partition, SELF_CONTAINED if self._self_contained else 0))

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return self._fd >= 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch. PenstockError, with the file removed, when it can't be stored."""
        if self._fd < 0:
            raise ValueError(f"the result file {self.path} is finished or given up")
        if not batch.schema.equals(self._schema):
            raise ValueError(
                f"the batch's schema is not that of {self.path}: {batch.schema} instead of {self._schema}"
            )
        payload = memoryview(batch_payload(batch, self_contained=self._self_contained)).cast("B")
        checksum = xxhash.xxh3_64_intdigest(payload)
        self._write_all([BLOCK.pack(len(payload), checksum, batch.num_rows), payload, bytes(-len(payload) % 8)])
        self._rows += batch.num_rows
        self._bytes += len(payload)
        self._batches += 1
        self._checksum = (self._checksum + checksum) & _MASK

    def finish(self) -> ResultFileSummary:
        """Write the footer and give the file its name."""
        if self._fd < 0:
            raise ValueError(f"the result file {self.path} is finished or given up")
        footer = FOOTER.pack(self._batches, self._rows, self._bytes, self._checksum)
        self._write_all([footer, TAIL.pack(xxhash.xxh3_64_intdigest(footer), MAGIC)])
        fd, self._fd = self._fd, -1
        try:
            os.close(fd)  # some file systems report a full disk only now
            self._temporary.replace(self.path)
        except OSError as error:
            self._temporary.unlink(missing_ok=True)
            raise self._failure(error) from error
        return ResultFileSummary(self._rows, self._bytes, self._checksum, self._batches)

    def abort(self) -> None:
        """Give up: the temporary file goes; idempotent, and without effect after `finish`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
            self._temporary.unlink(missing_ok=True)

    def _write_all(self, parts: Sequence[bytes | memoryview]) -> None:
        left = [memoryview(part) for part in parts if len(part)]
        try:
            while left:
                written = os.writev(self._fd, left)
                while left and written >= len(left[0]):
                    written -= len(left.pop(0))
                if written:
                    left[0] = left[0][written:]
        except OSError as error:
            self.abort()
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> PenstockError:
        what = "the disk is full" if error.errno in _FULL else str(error)
        return PenstockError(
            f"cannot write partition {self._partition} to {self.path} after {self._bytes} bytes of data: {what}. "
            f"Free space in {self.path.parent} or set spark.penstock.environment.directory to a directory with more."
        )

    def __enter__(self) -> ResultFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _header(schema: pa.Schema, partition: PartitionId, flags: int) -> list[bytes | memoryview]:
    message = _padded(schema.serialize().to_pybytes())
    dataset = partition.dataset.encode()
    texts = message + _padded(dataset)
    start = HEADER.pack(
        MAGIC,
        VERSION,
        flags,
        len(message),
        len(dataset),
        partition.index,
        partition.attempt,
        xxhash.xxh3_64_intdigest(texts),
    )
    return [start, CHECKSUM.pack(xxhash.xxh3_64_intdigest(start)), texts]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


class ResultFileReader:
    """Reads one file: iterate for its batches, as often as needed. They lie over the file's memory map.

    Raises PartitionLostError where there is no file, IncompleteDataError where it is not what was written.
    """

    __slots__ = ("_buffer", "_first", "_last", "_self_contained", "_where", "path", "schema", "summary")

    def __init__(self, path: str | os.PathLike[str], where: FileOrigin) -> None:
        self.path = Path(path)
        self._where = where
        self._buffer: pa.Buffer | None = self._map()
        if self._buffer.size < _START + _END:
            raise self._incomplete(f"it has {self._buffer.size} bytes, too few for a result file")
        self.summary = self._read_footer(self._buffer)
        self.schema, self._self_contained = self._read_header(self._buffer)

    def _map(self) -> pa.Buffer:
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                return pa.py_buffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
        except FileNotFoundError as error:
            raise PartitionLostError(f"{self._where}: its file {self.path} is gone") from error
        except OSError as error:
            raise PartitionLostError(f"{self._where}: its file {self.path} cannot be read: {error}") from error

    def _read_footer(self, buffer: pa.Buffer) -> ResultFileSummary:
        self._last = buffer.size - _END
        end = memoryview(buffer).cast("B")[self._last :]
        checksum, magic = TAIL.unpack(end[FOOTER.size :])
        if magic != MAGIC:
            raise self._incomplete("it does not end as a result file does: it was cut or overwritten")
        if checksum != xxhash.xxh3_64_intdigest(end[: FOOTER.size]):
            raise self._incomplete("the checksum of its footer does not match")
        batches, rows, size, total = FOOTER.unpack(end[: FOOTER.size])
        return ResultFileSummary(rows, size, total, batches)

    def _read_header(self, buffer: pa.Buffer) -> tuple[pa.Schema, bool]:
        data = memoryview(buffer).cast("B")
        start = data[: HEADER.size]
        magic, version, flags, schema_size, dataset_size, index, attempt, checksum = HEADER.unpack(start)
        if magic != MAGIC:
            raise self._incomplete("it does not begin as a result file does")
        if CHECKSUM.unpack(data[HEADER.size : _START])[0] != xxhash.xxh3_64_intdigest(start):
            raise self._incomplete("the checksum of its header does not match")
        if version != VERSION or flags & ~SELF_CONTAINED:
            raise self._incomplete(
                f"its format is version {version} with flags {flags}: this reads version {VERSION}"
            )
        self._first = _START + schema_size + dataset_size + -dataset_size % 8
        if self._first > self._last or xxhash.xxh3_64_intdigest(data[_START : self._first]) != checksum:
            raise self._incomplete("the checksum of its schema does not match")
        dataset = bytes(data[_START + schema_size :][:dataset_size]).decode()
        if PartitionId(dataset, index, attempt) != self._where.partition:
            raise self._incomplete(f"it holds partition {PartitionId(dataset, index, attempt)}")
        return pa.ipc.read_schema(buffer.slice(_START, schema_size)), bool(flags & SELF_CONTAINED)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number, (_, rows, payload) in enumerate(self._blocks()):
            try:
                batch = read_payload(self.schema, payload, self_contained=self._self_contained)
            except (pa.ArrowInvalid, OSError) as error:
                raise self._incomplete(f"batch {number} is not Arrow data: {error}") from error
            if batch.num_rows != rows:
                raise self._incomplete(f"batch {number} has {batch.num_rows} rows instead of {rows}")
            yield batch

    def messages(self) -> Iterator[bytes]:
        """The batches as messages of the record stream (length, checksum, payload, padding), each checked."""
        for checksum, _, payload in self._blocks():
            yield b"".join((MESSAGE.pack(payload.size, checksum), payload, bytes(-payload.size % 8)))

    def _blocks(self) -> Iterator[tuple[int, int, pa.Buffer]]:
        """Checksum, rows and payload of each batch; at the end the counts must be the footer's."""
        if self._buffer is None:
            raise ValueError(f"the reader of {self.path} is closed")
        buffer, position = self._buffer, self._first
        rows = size = total = 0
        for number in range(self.summary.batches):
            checksum, batch_rows, payload = self._read_block(buffer, position, number)
            yield checksum, batch_rows, payload
            position += BLOCK.size + payload.size + -payload.size % 8
            rows, size, total = rows + batch_rows, size + payload.size, (total + checksum) & _MASK
        found = ResultFileSummary(rows, size, total, self.summary.batches)
        if found != self.summary or position != self._last:
            raise self._incomplete(f"it holds {found}, its footer says {self.summary}")

    def _read_block(self, buffer: pa.Buffer, position: int, number: int) -> tuple[int, int, pa.Buffer]:
        start = position + BLOCK.size
        if start > self._last:
            raise self._incomplete(f"batch {number} of {self.summary.batches} is missing")
        length, checksum, rows = BLOCK.unpack_from(buffer, position)
        end = start + length
        if end + -length % 8 > self._last:
            raise self._incomplete(f"batch {number} reaches over the end")
        payload = buffer.slice(start, length)
        if xxhash.xxh3_64_intdigest(payload) != checksum:
            raise self._incomplete(f"the checksum of batch {number} does not match")
        if any(memoryview(buffer).cast("B")[end : end + -length % 8]):
            raise self._incomplete(f"there is something behind batch {number}")
        return checksum, rows, payload

    def _incomplete(self, what: str) -> IncompleteDataError:
        return IncompleteDataError(
            f"{self._where}: file {self.path} is damaged: {what}. The partition must be produced again."
        )

    def close(self) -> None:
        """Let go of the map; idempotent. It goes with the last batch that lies over it."""
        self._buffer = None

    def __enter__(self) -> ResultFileReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
