# SPDX-License-Identifier: Apache-2.0
"""Exchanges as plans describe them: partitioner specs, checked against the schema before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.operators.columns import only_column, refuse_collated
from penstock.record import PartitionerSpec
from penstock.record.spark_hash import unhashable as unhashable_in_spark
from penstock.record.word_hash import unhashable as unhashable_word

__all__ = ["PartitionerSpec", "custom_exchange", "exchange", "hash_exchange", "range_exchange"]


def exchange(kind: str) -> PartitionerSpec:
    """An exchange that looks at no column: rebalance, rescale, random, broadcast, to_one, forward."""
    return PartitionerSpec(kind)


def custom_exchange(function: Callable[[pa.RecordBatch], object]) -> PartitionerSpec:
    """An exchange by the user's function, which gives the partition of each row of a batch."""
    if not callable(function):
        raise TypeError(f"partitionCustom takes a function over a RecordBatch, not {function!r}")
    return PartitionerSpec("custom", function=function)


def range_exchange(column: str) -> PartitionerSpec:
    """An exchange by a column of places in an order."""
    return PartitionerSpec("range", (column,))


def hash_exchange(schema: pa.Schema, keys: Sequence[str], *, spark_compatible: bool = False) -> PartitionerSpec:
    """An exchange by the hash of key columns; raises SchemaError for a type that cannot be hashed."""
    unhashable = unhashable_in_spark if spark_compatible else unhashable_word
    for key in keys:
        field = only_column(schema, key, "keys")
        refuse_collated(field, "keys")
        reason = unhashable(field.type)
        if reason is not None:
            raise SchemaError(
                f"keyBy: column {key!r} of type {field.type} cannot be a key: {reason}: key by another column, or "
                "make one of it first with withColumn"
            )
    return PartitionerSpec("hash", tuple(keys), spark_compatible=spark_compatible)
