# SPDX-License-Identifier: Apache-2.0
"""The programs' rows: made by NumPy from one seed, written as Parquet or text files of a few pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 4
SEED = 20

Columns = dict[str, Any]


def write_tables(folder: Path, rows: int, columns: Callable[[np.random.Generator, int], Columns]) -> None:
    """Write so many rows as four Parquet files; `columns` makes the columns of one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, count in enumerate(shares(rows)):
        random = np.random.default_rng([SEED, number])
        pq.write_table(pa.table(columns(random, count)), folder / f"{number}.parquet")


def write_lines(folder: Path, rows: int, lines: Callable[[np.random.Generator, int], Sequence[str]]) -> None:
    """Write so many lines as four text files; `lines` makes those of one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, count in enumerate(shares(rows)):
        random = np.random.default_rng([SEED, number])
        (folder / f"{number}.txt").write_text("\n".join(lines(random, count)) + "\n")


def shares(rows: int) -> list[int]:
    """The rows of each file."""
    return [len(part) for part in np.array_split(np.empty(rows, np.int8), FILES)]


def skewed(random: np.random.Generator, count: int, values: int) -> Any:
    """Numbers below `values`, of which a few come often."""
    return np.minimum(random.zipf(1.3, count) - 1, values - 1) * 7919 % values


def named(prefix: str, numbers: Any) -> Any:
    """The numbers as names, such as `user-17`."""
    names = np.char.add(prefix, np.arange(int(numbers.max()) + 1).astype(str))
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), pa.array(names)).cast(pa.string())


def piece_number(random: np.random.Generator) -> int:
    """Which of the files these random numbers are for."""
    seeds: Any = random.bit_generator.seed_seq
    return int(seeds.entropy[1])
