# SPDX-License-Identifier: Apache-2.0
"""A Parquet file with the types of Spark's own that its columns have."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.graph import footer_of, holds_one_value, is_one_value
from penstock.operators.layouts import refilled


class ParquetFileWriter:
    """A file whose footer says what Spark calls its columns, where Parquet does not."""

    def __init__(self, sink: Any, schema: pa.Schema, compression: str) -> None:
        import pyarrow.parquet as pq

        named = schema.with_metadata({**(schema.metadata or {}), **footer_of(schema)})
        self._writer = pq.ParquetWriter(sink, named, compression=compression)
        self._own = [place for place, field in enumerate(schema) if holds_one_value(field.type)]

    def write_table(self, rows: pa.Table) -> None:
        """Append one row group."""
        for place in self._own:
            field = rows.schema.field(place)
            chunks = [_solid(chunk, field.type) for chunk in rows.column(place).chunks]
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> None:
        """End the file; the sink stays open."""
        self._writer.close()


def _solid(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column without nulls in the parts of variants that are null: Parquet takes none where none may be."""
    if not holds_one_value(kind):
        return column
    if not pt.is_struct(kind):
        return refilled(column, kind, _solid)
    parts = [column.field(place) for place in range(kind.num_fields)]
    parts = [_without_nulls(part) if is_one_value(kind) else _solid(part, part.type) for part in parts]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null() if column.null_count else None)


def _without_nulls(part: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(part.type, len(part), [None, *part.buffers()[1:]], 0, part.offset)
