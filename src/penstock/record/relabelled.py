# SPDX-License-Identifier: Apache-2.0
"""The same memory under another type that differs by labels only: what may be null, names of inner fields, metadata.

Arrow's casts refuse such a change inside other types, or copy. Nothing is copied or checked here: the caller knows
that both types have the same layout, and that no null is where the new type allows none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa


def relabelled(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as one of this type."""
    return column if column.type.equals(kind) else pa.array(_Relabelled(column, kind))


def relabelled_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch as one of this schema, column by column in their order."""
    return batch if batch.schema.equals(schema) else pa.record_batch(_Relabelled(batch, schema))


@dataclass(frozen=True, slots=True)
class _Relabelled:
    """Hands out the memory of one by Arrow's C interface, with the type of another."""

    given: Any
    kind: Any

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The type, and the memory."""
        return self.kind.__arrow_c_schema__(), self.given.__arrow_c_array__()[1]
