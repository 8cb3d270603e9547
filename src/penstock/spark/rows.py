# SPDX-License-Identifier: Apache-2.0
"""PySpark's `Row` objects, made of tuples without the checks of its constructor: these take most of its time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import Row


def row_maker(names: list[str]) -> Callable[[tuple[Any, ...]], Row]:
    """Makes a row of these columns of a tuple of their values.

    Its class has the names of the columns: a row with names of its own takes three times as long.
    """
    kind = type("Row", (Row,), {"__slots__": (), "__fields__": names})
    return partial(tuple.__new__, kind)
