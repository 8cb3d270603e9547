# SPDX-License-Identifier: Apache-2.0
"""Instants as functions over Arrow see them: labelled with the session's time zone, as in PySpark.

Everywhere else their label is UTC. The label changes no instant, but what hour it is: a function that asks Arrow for
the hour, or for text, gets the session's. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from penstock.graph.nullability import fields_of, with_fields
from penstock.record.relabelled import relabelled_batch


def schema_in(schema: pa.Schema, zone: str) -> pa.Schema:
    """The schema with all its instants in this zone, also inside other types."""
    return pa.schema([_field_in(field, zone) for field in schema])


def batches_in(batches: Iterator[pa.RecordBatch], zone: str) -> Iterator[pa.RecordBatch]:
    """The batches with all their instants in this zone."""
    known = shown = None
    for batch in batches:
        if known is None or not batch.schema.equals(known):
            known = batch.schema
            shown = schema_in(known, zone)
        yield relabelled_batch(batch, shown)


def _field_in(field: pa.Field, zone: str) -> pa.Field:
    return field.with_type(_type_in(field.type, zone))


def _type_in(kind: pa.DataType, zone: str) -> pa.DataType:
    if pt.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, zone)
    if pt.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _type_in(kind.value_type, zone), kind.ordered)
    fields = fields_of(kind)
    return with_fields(kind, [_field_in(field, zone) for field in fields]) if fields else kind
