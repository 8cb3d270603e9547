# SPDX-License-Identifier: Apache-2.0
"""Several batches as one."""

from __future__ import annotations

import pyarrow as pa


def joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch where Arrow can join them (not, for example, different dictionaries inside other types)."""
    if len(batches) <= 1:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return batches
