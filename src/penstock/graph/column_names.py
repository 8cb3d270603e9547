# SPDX-License-Identifier: Apache-2.0
"""Names of columns in another case, which Spark takes for the same unless `spark.sql.caseSensitive` is set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa


def as_written(schema: pa.Schema, name: str) -> str:
    """The name of the column that Spark means by this one: of the same case, else the only one of another case.

    If there is none, it is the name itself.
    """
    if name in schema.names:
        return name
    others = [other for other in schema.names if _plain(other) == _plain(name)]
    return others[0] if len(others) == 1 else name


def of_one_name(names: Sequence[str]) -> list[str]:
    """The names that another one equals but for case, by any comparison: Spark and its file formats have several."""
    plain = [_plain(name).casefold() for name in names]
    times = Counter(plain)
    return [name for name, found in zip(names, plain, strict=True) if times[found] > 1]


def _plain(name: str) -> str:
    """Both ways, as Java compares: some letters have two forms of one case."""
    return name.upper().lower()
