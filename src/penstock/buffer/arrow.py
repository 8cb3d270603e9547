# SPDX-License-Identifier: Apache-2.0
"""A record batch as one piece of bytes, and back without a copy.

Rules:

- If the schema holds no dictionary, the payload is a bare IPC record-batch message: the schema travels once, apart.
- If it does, nested ones included, the payload is a whole IPC stream of its own, dictionaries and all: a bare
  message would refer to dictionaries that only the writer has.
- `read_payload` trusts its bytes: verify a checksum before. It makes no copy, so the batch keeps the buffer alive.
- Compressed is each of a batch's buffers for itself, by Arrow's own means, so any reader of Arrow reads it:
  `read_payload` too. `PayloadFormat`, which knows what to expect, is several times as fast with small batches.
- A payload is compressed and expanded on the caller's thread: a pool's threads cost more than they save here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_METADATA_BYTES = 256
"""About what a message carries beside its columns."""
COMPRESSIONS = ("none", "lz4", "zstd")
"""The compressions that payloads of files may have."""

_END_OF_STREAM = 8
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


def has_dictionaries(schema: pa.Schema) -> bool:
    """Tell whether a column, or anything nested in one, is dictionary-encoded."""
    return any(_is_dictionary(column.type) for column in schema)


def _is_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _is_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    if pa.types.is_map(kind):
        return _is_dictionary(kind.key_type) or _is_dictionary(kind.item_type)
    if pa.types.is_run_end_encoded(kind):
        return _is_dictionary(kind.value_type)
    if hasattr(kind, "value_type"):
        return _is_dictionary(kind.value_type)
    return any(_is_dictionary(kind.field(position).type) for position in range(kind.num_fields))


def batch_payload(batch: pa.RecordBatch, *, self_contained: bool | None = None) -> pa.Buffer:
    """The bytes of a batch. `self_contained` is `has_dictionaries(schema)` where the caller knows it already."""
    if self_contained is None:
        self_contained = has_dictionaries(batch.schema)
    if not self_contained:
        return batch.serialize()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def read_payload(schema: pa.Schema, buffer: pa.Buffer, *, self_contained: bool | None = None) -> pa.RecordBatch:
    """The batch in `batch_payload`'s bytes, over the same memory; pa.ArrowInvalid or OSError for other bytes."""
    if self_contained is None:
        self_contained = has_dictionaries(schema)
    if not self_contained:
        return pa.ipc.read_record_batch(buffer, schema)
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_next_batch()


def _row_bits(schema: pa.Schema) -> int:
    """The bits of a row, null flags included, where every column has a fixed width; else 0."""
    kinds = schema.types
    if any(pa.types.is_nested(kind) or not pa.types.is_primitive(kind) for kind in kinds):
        return 0
    return int(sum(kind.bit_width + 1 for kind in kinds))


class PayloadFormat:
    """The payloads of one file: one schema, one compression."""

    __slots__ = ("_is_plain", "_options", "_row_bits", "_start", "compression", "schema", "self_contained")

    def __init__(self, schema: pa.Schema, compression: str = "none") -> None:
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression {compression!r}: it must be one of {', '.join(COMPRESSIONS)}")
        self.schema = schema
        self.compression = compression
        self.self_contained = has_dictionaries(schema)
        self._row_bits = _row_bits(schema)
        self._is_plain = compression == "none" and not self.self_contained
        codec = None if compression == "none" else compression
        self._options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, schema, options=self._options).close()
        empty = sink.getvalue()
        self._start = empty.slice(0, empty.size - _END_OF_STREAM)

    def size(self, batch: pa.RecordBatch) -> int:
        """About the bytes of the batch's payload before compression; for its rows alone, not for its parent's."""
        if self._row_bits:  # Arrow's own answer costs as much as a small batch itself
            return _METADATA_BYTES + int(batch.num_rows) * self._row_bits // 8
        return int(batch.nbytes if self.self_contained else pa.ipc.get_record_batch_size(batch))

    def sizes(self, batches: Sequence[pa.RecordBatch]) -> int:
        """The sum of `size` over batches of this schema."""
        return sum(map(self.size, batches))

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        """The batch's payload."""
        if self._is_plain:
            return batch.serialize()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema, options=self._options) as writer:
            writer.write_batch(batch)
        whole = sink.getvalue()
        if self.self_contained:
            return whole
        return whole.slice(self._start.size, whole.size - self._start.size - _END_OF_STREAM)

    def decode(self, payload: pa.Buffer) -> pa.RecordBatch:
        """The batch; over the payload's memory where that is not compressed. Errors as of `read_payload`."""
        if self._is_plain:
            return pa.ipc.read_record_batch(payload, self.schema)
        stream = payload if self.self_contained else pa.py_buffer(b"".join((self._start, payload)))
        with pa.ipc.open_stream(stream, options=_READ_OPTIONS) as reader:
            return reader.read_next_batch()
