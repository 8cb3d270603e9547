# SPDX-License-Identifier: Apache-2.0
"""A partition of a service that stores, large enough to be in the middle of, what a reader has left, and damage."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.shuffle import PartitionKind
from penstock.testing.conformance_exchange import NUMBERS, ConformanceExchange, Consumer, Producer, WantedPartition

KIND = PartitionKind.BLOCKING_SORT_MERGE
ROWS = 1 << 16
"""Of a batch: half a MB."""
BATCHES = 64


def write(producer: Producer, batches: int = BATCHES, first: int = 0) -> None:
    """The batches from the first on, over four subpartitions in turns."""
    column = pa.array(range(ROWS), pa.int64())
    for n in range(first, batches):
        producer.writer.write(pa.record_batch([column], schema=NUMBERS), n % 4)


def written(exchange: ConformanceExchange, batches: int = BATCHES, *, index: int = 0, host: str = "a") -> Producer:
    """A partition over four subpartitions, finished; 32 MB unless told otherwise."""
    producer = exchange.produce(WantedPartition(KIND, subpartitions=4, index=index, host=host))
    write(producer, batches)
    producer.writer.finish()
    return producer


def rows_left(consumer: Consumer) -> int:
    """The rows up to the end, whose sums the gate has compared."""
    return sum(item.batch.num_rows for item in consumer.drain() if item.batch is not None)


def flip(path: Path) -> None:
    """Turn one bit in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))


def cut(path: Path) -> None:
    """Take the second half of a file away."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
