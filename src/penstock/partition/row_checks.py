# SPDX-License-Identifier: Apache-2.0
"""The checks of rows that come to a writer of a stored partition, and their words. Pure."""

from __future__ import annotations

import pyarrow as pa


def check_schema(batch: pa.RecordBatch, schema: pa.Schema, name: str) -> None:
    """ValueError for rows of another schema than that of the partition with this name."""
    if not batch.schema.equals(schema):
        raise ValueError(f"the batch's schema is not that of {name}: {batch.schema} instead of {schema}")


def check_numbers(lowest: int, highest: int, subpartitions: int, name: str) -> None:
    """ValueError for numbers beyond those of the subpartitions."""
    if lowest < 0 or highest >= subpartitions:
        raise ValueError(f"there is no subpartition {lowest if lowest < 0 else highest} in {name}")
