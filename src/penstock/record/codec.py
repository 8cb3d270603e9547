# SPDX-License-Identifier: Apache-2.0
"""Record batch to bytes and back: the payload format of `buffer.arrow`, with every check around it.

Rules:
- Without a dictionary in the schema a batch is one bare IPC message (no schema, a few hundred bytes of metadata);
  with one, also a nested one, it is a complete IPC stream of its own, so batches never depend on each other.
- A payload has the batch's rows, not its parent's: Arrow cuts most types, `layout.compact` does it for views,
  list views and dictionaries at the top level (views also nested). List views inside another type, and ordered
  dictionaries, still send the parent's values.
- `decode` copies nothing: the batch keeps the buffer alive. It must start at a multiple of 8.
- Bytes that are no batch of this schema raise ProtocolError.

Trust: `decode` checks the message's structure and the sizes of all buffers, but not every offset in them (that costs
a pass over the data). Bytes whose checksum matched are what the writer wrote, so that is enough after `framing`. For
bytes that were not checked so, `validation="full"` is required before values are touched: with the cheap check alone
a damaged offset in the middle of a string column is accepted and reads outside the buffer. Even then PyArrow 26 may
crash later on two things it accepts: casting views inside other types that hold garbage under a null, and `nbytes` of
an empty dense union without buffers.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from penstock.buffer.arrow import batch_payload, has_dictionaries, read_payload
from penstock.errors import ProtocolError, SchemaError
from penstock.record.layout import compact, contains, is_loose

Validation = Literal["cheap", "full"]

_REFUSED = (
    pa.ArrowException,
    OSError,
    EOFError,
    StopIteration,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
)
"""The errors of PyArrow for bytes it cannot read."""


class BatchCodec:
    """Encodes and decodes the batches of one schema."""

    def __init__(self, schema: pa.Schema, validation: Validation = "cheap") -> None:
        self.schema = schema
        self._full = validation == "full"
        self._streams = has_dictionaries(schema)
        self._loose = [i for i, field in enumerate(schema) if contains(field.type, is_loose)]

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        """The batch's bytes; raises SchemaError for a batch of another schema."""
        if not batch.schema.equals(self.schema):
            raise SchemaError(self._difference(batch.schema))
        if self._loose:
            columns = [compact(c) if i in self._loose else c for i, c in enumerate(batch.columns)]
            batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return batch_payload(batch, self_contained=self._streams)

    def decode(self, buffer: pa.Buffer, *, is_checked: bool = False) -> pa.RecordBatch:
        """The batch in this buffer, over the buffer's own memory; raises ProtocolError for anything else.

        `is_checked`: its checksum is a writer's who had a batch of this schema, so its sizes are not looked at again.
        """
        try:
            batch = read_payload(self.schema, buffer, self_contained=self._streams)
            if self._streams and not batch.schema.equals(self.schema):
                raise ProtocolError(self._difference(batch.schema))
            if not is_checked or self._full:
                batch.validate(full=self._full)
        except ProtocolError:
            raise
        except _REFUSED as error:
            raise ProtocolError(
                f"{buffer.size} bytes are no record batch of the schema ({', '.join(self.schema.names)}): {error}"
            ) from error
        return batch

    def _difference(self, other: pa.Schema) -> str:
        if len(other) != len(self.schema):
            return f"the batch has columns {other.names}, declared are {self.schema.names}"
        pairs = zip(other, self.schema, strict=True)
        ours, theirs = next((b, a) for a, b in pairs if not a.equals(b))
        return (
            f"column {theirs.name!r} is {_described(theirs)}, declared is {ours.name!r} {_described(ours)}; "
            f"cast it or declare the schema the function really returns"
        )


def _described(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"
