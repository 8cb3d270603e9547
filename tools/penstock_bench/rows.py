# SPDX-License-Identifier: Apache-2.0
"""The rows that are measured: made by NumPy from a seed, as Arrow batches or as Parquet files of one row group.

Rules: every file is uncompressed and has about a million rows, so that any first few files are a smaller data set.
The right answers are counted while the rows are made. A `NumberFiles` folder has 32 bytes a row: a wide key `id`, a
narrow key `k`, two doubles. A `TextFiles` folder has a key of 12 characters, a number and a text of 64 characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

FILE_ROWS = 1 << 20
BATCH_ROWS = 1 << 16
GROUPS = 2_000
NUMBERS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("x", pa.float64()), ("y", pa.float64())])
NUMBERS_DDL = "id long, k long, x double, y double"
TEXTS = pa.schema([("key", pa.string()), ("n", pa.int64()), ("text", pa.string())])
TEXTS_DDL = "key string, n long, text string"
KEY_LENGTH = 12
TEXT_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Dataset:
    """Parquet files and what is in them; `means` are the means of `x` by `k`, empty where there is no `k`."""

    paths: tuple[str, ...]
    rows: int
    bytes: int
    means: tuple[float, ...] = ()


def number_batch(rows: int, seed: int) -> pa.RecordBatch:
    """Rows of four numbers."""
    random = np.random.default_rng(seed)
    columns: list[np.ndarray[Any, Any]] = [
        random.integers(-(1 << 62), 1 << 62, rows),
        random.integers(0, GROUPS, rows),
        random.random(rows),
        random.random(rows),
    ]
    arrays = [_fixed(column, field.type) for column, field in zip(columns, NUMBERS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=NUMBERS)


def text_batch(rows: int, seed: int) -> pa.RecordBatch:
    """Rows of a text key, a number and a text."""
    random = np.random.default_rng(seed)
    arrays = [
        _letters(random, rows, KEY_LENGTH),
        _fixed(random.integers(0, 1 << 40, rows), pa.int64()),
        _letters(random, rows, TEXT_LENGTH),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=TEXTS)


def write_numbers(folder: Path, rows: int) -> Dataset:
    """Write a folder of number rows."""
    counts, sums = np.zeros(GROUPS, np.int64), np.zeros(GROUPS)
    paths, size = [], 0
    for path, start, count in _files(folder, rows):
        batch = number_batch(count, start)
        keys = np.frombuffer(batch.column(1).buffers()[1], np.int64)
        counts += np.bincount(keys, minlength=GROUPS)
        sums += np.bincount(keys, np.frombuffer(batch.column(2).buffers()[1], np.float64), minlength=GROUPS)
        size += _write(path, batch)
        paths.append(str(path))
    means = np.divide(sums, counts, out=np.full(GROUPS, np.nan), where=counts > 0)
    return Dataset(tuple(paths), rows, size, tuple(means.tolist()))


def write_texts(folder: Path, rows: int) -> Dataset:
    """Write a folder of text rows."""
    paths, size = [], 0
    for path, start, count in _files(folder, rows):
        size += _write(path, text_batch(count, start))
        paths.append(str(path))
    return Dataset(tuple(paths), rows, size)


@dataclass(frozen=True, slots=True)
class GeneratedSource:
    """Rows out of memory: each subtask makes a few batches and gives them again and again; picklable."""

    rows: int
    distinct: int = 8

    def read(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
        """This subtask's share."""
        left = self.rows // parallelism + (subtask < self.rows % parallelism)
        batches = [number_batch(min(left, BATCH_ROWS), subtask * self.distinct + i) for i in range(self.distinct)]
        turn = 0
        while left > 0:
            batch = batches[turn % self.distinct]
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= batch.num_rows
            turn += 1


def _files(folder: Path, rows: int) -> Iterator[tuple[Path, int, int]]:
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, rows, FILE_ROWS):
        yield folder / f"part-{start // FILE_ROWS:05}.parquet", start, min(FILE_ROWS, rows - start)


def _write(path: Path, batch: pa.RecordBatch) -> int:
    import pyarrow.parquet as pq

    pq.write_table(
        pa.Table.from_batches([batch]), path, compression="none", use_dictionary=False, row_group_size=FILE_ROWS
    )
    return int(batch.nbytes)


def _fixed(values: np.ndarray[Any, Any], type_: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def _letters(random: np.random.Generator, rows: int, length: int) -> pa.Array:
    letters = random.integers(97, 123, rows * length, dtype=np.uint8)
    offsets = np.arange(0, rows * length + 1, length, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
