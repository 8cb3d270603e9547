# SPDX-License-Identifier: Apache-2.0
"""Memory under another type's labels: no copy, the same rows, whatever slices and layouts they have."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from penstock.record.relabelled import relabelled, relabelled_batch
from penstock.testing import DEADLINE

STRICT = pa.field("x", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (pa.array([{"x": 1}, None, {"x": 3}], pa.struct([STRICT])), pa.struct([("x", pa.int64())])),
        (pa.array([[1], None, [2, 3]], pa.list_(STRICT)), pa.list_(pa.int64())),
        (pa.array([[("a", 1)], None, []], pa.map_(pa.string(), STRICT)), pa.map_(pa.string(), pa.int64())),
        (pa.array([[{"x": 1}]] * 3, pa.list_(pa.struct([STRICT]), 1)), pa.list_(pa.struct([("x", pa.int64())]), 1)),
        (pa.array([{}, None, {}], pa.struct([])), pa.struct([])),
    ],
)
def test_labels_change_and_nothing_else(rows: pa.Array, kind: pa.DataType) -> None:
    """Slices, nulls and structs without fields come through; the values lie where they lay."""
    part = rows.slice(1)
    found = relabelled(part, kind)
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (kind, part.to_pylist())
    assert [b and b.address for b in found.buffers()] == [b and b.address for b in part.buffers()]


def test_batches_keep_their_rows() -> None:
    """Also columns of one name, and a batch of no columns, which has rows all the same."""
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2])] * 2, schema=pa.schema([STRICT, STRICT]))
    wider = pa.schema([("x", pa.int64())] * 2)
    assert relabelled_batch(batch, wider).schema == wider
    assert relabelled_batch(batch.select([]), pa.schema([])).num_rows == 2


def test_pandas_stays_out() -> None:
    """It is on the path of rows, where the first import of pandas would cost a second."""
    code = (
        "import sys, numpy, pyarrow as pa\n"
        "from penstock.record.relabelled import relabelled\n"
        "rows = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(numpy.arange(2))])\n"
        "inner = pa.StructArray.from_arrays([rows], fields=[pa.field('x', pa.int64(), False)])\n"
        "relabelled(inner, pa.struct([('x', pa.int64())]))\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE)
