# SPDX-License-Identifier: Apache-2.0
"""A record batch as one piece of bytes, and back without a copy.

Rules:

- Where the schema holds no dictionary the payload is a bare IPC record-batch message: the schema travels once, apart.
- Where it does, nested ones included, the payload is a whole IPC stream of its own, dictionaries and all: a bare
  message would refer to dictionaries that only the writer has.
- `read_payload` trusts its bytes: verify a checksum before. It makes no copy, so the batch keeps the buffer alive.
"""

from __future__ import annotations

import pyarrow as pa


def has_dictionaries(schema: pa.Schema) -> bool:
    """Whether a column, or anything nested in one, is dictionary-encoded."""
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
