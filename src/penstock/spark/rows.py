# SPDX-License-Identifier: Apache-2.0
"""PySpark's `Row` objects, made of tuples without the checks of its constructor: these take most of its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Row


def row_maker(names: list[str]) -> Callable[[tuple[Any, ...]], Row]:
    """Makes a row of these columns of a tuple of their values."""
    new = tuple.__new__

    def make(values: tuple[Any, ...]) -> Row:
        row = new(Row, values)
        row.__fields__ = names
        return row

    return make
