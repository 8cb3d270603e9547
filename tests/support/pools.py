# SPDX-License-Identifier: Apache-2.0
"""Looks for mapped pools of network memory, in a process and in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


def has_mapped_a_pool(pid: int | str = "self") -> bool:
    """Tell whether a process has the memory of an environment in its address space."""
    return "memfd:penstock" in Path(f"/proc/{pid}/maps").read_text()


def with_pools(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A stage that says in a column `mapped` of each row whether its task has mapped a pool."""
    for batch in batches:
        mapped = pa.array([has_mapped_a_pool()] * batch.num_rows, pa.bool_())
        yield pa.RecordBatch.from_arrays([*batch.columns, mapped], names=[*batch.schema.names, "mapped"])
