# SPDX-License-Identifier: Apache-2.0
"""A model's labels: many tasks unpack pictures, one task, which stands for a scarce device, runs the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock_bench.programs.program import Program
from penstock_bench.programs.rows import Columns, write_tables

PIXELS, LABELS = 64, 10
UNPACKED = "id long, pixels array<float>"
LABELLED = "id long, label long, score float"


def write(folder: Path, rows: int) -> None:
    """Pictures of 64 bytes."""

    def pictures(random: np.random.Generator, count: int) -> Columns:
        pixels = pa.py_buffer(random.bytes(count * PIXELS))
        ends = pa.py_buffer(np.arange(0, (count + 1) * PIXELS, PIXELS, dtype=np.int32))
        return {
            "id": random.integers(0, 1 << 60, count),
            "picture": pa.Array.from_buffers(pa.binary(), count, [None, ends, pixels]),
        }

    write_tables(folder, rows, pictures)


def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The pixels as numbers from 0 to 1, brightened."""
    for batch in batches:
        joined = b"".join(batch.column("picture").to_pylist())
        pixels = np.sqrt(np.frombuffer(joined, np.uint8).astype(np.float32) / 255)
        lists = pa.ListArray.from_arrays(np.arange(0, len(pixels) + 1, PIXELS, dtype=np.int32), pa.array(pixels))
        yield pa.record_batch([batch.column("id"), lists], names=["id", "pixels"])


def labelled(model: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that gives each picture the label with the highest score."""

    def given(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pixels = batch.column("pixels").flatten().to_numpy().reshape(-1, PIXELS)
            scores = np.tanh(pixels @ model.value)
            yield pa.record_batch(
                [batch.column("id"), scores.argmax(axis=1), scores.max(axis=1)], names=["id", "label", "score"]
            )

    return given


def weights() -> Any:
    """The model."""
    return np.random.default_rng(7).normal(size=(PIXELS, LABELS)).astype(np.float32)


def in_pyspark(spark: Any, folder: str) -> Any:
    """Plain PySpark."""
    model = spark.sparkContext.broadcast(weights())
    pictures = spark.read.parquet(folder).mapInArrow(unpacked, UNPACKED)
    labels = pictures.repartition(1).mapInArrow(labelled(model), LABELLED)
    return labels.groupBy("label").agg({"id": "count", "score": "max"})


def in_penstock(spark: Any, folder: str) -> Any:
    """With Penstock."""
    model = spark.sparkContext.broadcast(weights())
    pictures = penstock.readParquet(spark, folder).mapInArrow(unpacked, UNPACKED)
    labels = pictures.rebalance(1).mapInArrow(labelled(model), LABELLED)
    return labels.groupBy("label").agg({"id": "count", "score": "max"})


PROGRAM = Program(
    "inference",
    "many tasks unpack pictures, one runs a model that was broadcast",
    300_000,
    write,
    (in_pyspark,),
    (in_penstock,),
)
