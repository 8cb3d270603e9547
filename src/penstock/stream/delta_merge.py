# SPDX-License-Identifier: Apache-2.0
"""Rows of files merged into a Delta table by keys: a row replaces that of its key, or is a new one.

One call is one version of the table. Null is a value like others: a row with a null key replaces that with null.

Limits: the changed rows of a commit are in the memory of the task that makes it. The library reads the table's files
that may have one of the keys, and writes those anew that have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.errors import SchemaError
from penstock.stream.last_rows import LastRows


def refuse_keys(schema: pa.Schema, keys: Sequence[str]) -> None:
    """Raise SchemaError for keys that Delta Lake compares otherwise than Spark groups by them."""
    for key in keys:
        if pa.types.is_floating(schema.field(key).type):
            raise SchemaError(
                f"writeStream: keyColumns: {key!r} is a {schema.field(key).type}, which has two zeros and many NaNs:"
                " cast it to a decimal or a string"
            )


def newest_rows(filesystem: pafs.FileSystem, paths: Sequence[str], keys: Sequence[str]) -> pa.Table:
    """The last row of each key in these files, which are in the order of their rows; there is at least one file."""
    last = LastRows(keys)
    for path in paths:
        with filesystem.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            for batch in file.iter_batches():
                last.add(batch)
            schema = file.schema_arrow
    return pa.Table.from_batches(last.take(), schema)


def merge_rows(table: Any, rows: pa.Table, keys: Sequence[str], properties: Any) -> None:
    """Make a version in which these rows replace those of their keys."""
    same = " AND ".join(_same(key, has_null=rows[key].null_count > 0) for key in keys)
    merger = table.merge(
        rows, same, source_alias="source", target_alias="target", streamed_exec=False, commit_properties=properties
    )
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _same(key: str, *, has_null: bool) -> str:
    """The condition that a row has the same value.

    Nulls are compared where there are any: files are then not left out by their least and greatest values.
    """
    quoted = '"' + key.replace('"', '""') + '"'
    return f"(target.{quoted} {'IS NOT DISTINCT FROM' if has_null else '='} source.{quoted})"
