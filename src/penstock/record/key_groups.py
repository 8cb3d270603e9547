# SPDX-License-Identifier: Apache-2.0
"""Key groups: the unit in which the keys of a streaming query are dealt out to tasks, and their state with them.

The group of a key is `pmod(hash(key), groups)` with Spark's hash, for ever: it is written into checkpoints. Task `t`
of `n` has the groups `g` with `g * n // groups == t`, so each has a run of them, and another number of tasks moves
whole groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.record.layout import index_dtype
from penstock.record.spark_hash import spark_partition_ids

HASH: Final = "spark_murmur3_seed42"
"""The name of the hash in checkpoints."""


def group_range(groups: int, tasks: int, task: int) -> range:
    """The key groups of a task."""
    return range(-(-task * groups // tasks), -(-(task + 1) * groups // tasks))


class GroupOwners:
    """Which of `tasks` tasks has a key, where there are `groups` key groups."""

    def __init__(self, groups: int, tasks: int) -> None:
        self._groups = groups
        self._owners = (np.arange(groups, dtype=np.int64) * tasks // groups).astype(index_dtype(tasks))

    def of(
        self, columns: Sequence[pa.Array], out: npt.NDArray[np.unsignedinteger[Any]] | None = None
    ) -> npt.NDArray[np.unsignedinteger[Any]]:
        """The task of each row's key; raises SchemaError for a type that Spark can't hash."""
        groups = spark_partition_ids(columns, self._groups)
        owners: npt.NDArray[np.unsignedinteger[Any]] = np.take(self._owners, groups, out=out)
        return owners
