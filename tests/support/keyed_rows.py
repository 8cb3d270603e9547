# SPDX-License-Identifier: Apache-2.0
"""Numbered rows with a key, and how they are counted: what these tests do with the rows of a rate source."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregate_states import Aggregation
from penstock.record import PartitionerSpec
from penstock.stream.aggregate import KeyedAggregate

KEYS = 50
KEYED = pa.schema([("key", pa.int64()), ("value", pa.int64())])
BY_KEY = PartitionerSpec("hash", ("key",))
COUNTS = KeyedAggregate(KEYED, ("key",), (Aggregation("n", "*", "count"), Aggregation("last", "value", "max")))


def keyed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives each row its key."""
    for batch in batches:
        values = batch.column("value")
        keys = pc.subtract(values, pc.multiply(pc.divide(values, KEYS), KEYS))
        yield pa.RecordBatch.from_arrays([keys, values], schema=KEYED)
