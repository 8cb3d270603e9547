# SPDX-License-Identifier: Apache-2.0
"""State in files that is larger than the memory of its task: it is filled, stored and restored all the same.

Each runs in processes of its own, which may have so much private memory more than they begin with (`RLIMIT_DATA`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from effort import with_all
from penstock.stream import arrow_pieces
from penstock.stream.arrow_pieces import PIECE_BYTES, READ_ROWS, rows_of_piece, rows_of_stream, stream_pieces
from penstock.stream.chain import StepContext
from penstock.stream.state.store import KeyedStore
from penstock.stream.state.stored import ABOUT
from penstock.stream.state.variables import VALUE, VariableSpec

PROGRAM = """
import re, resource, sys
from pathlib import Path
import pyarrow as pa
from penstock.stream.state_place import StateFiles, state_in
from penstock_bench import large_state

part, name, folder, keys, mib = sys.argv[1:]
pa.set_cpu_count(1)
began = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (began + (int(mib) << 20),) * 2)
with state_in(StateFiles([folder])):
    state, at = large_state.STATES[name](), Path(folder) / "at"
    found = large_state.run(at, int(keys), state, rounds=2) if part == "run" else large_state.restore(at, state)
print(found.get("whole_mb", 0), state.keys)
"""
LIMIT = 128
"""MiB."""


def run(part: str, name: str, folder: Path, keys: int) -> tuple[float, int]:
    """Run the bench's part in another process: the megabytes of its whole snapshot, and the number of keys."""
    command = [sys.executable, "-c", PROGRAM, part, name, str(folder), str(keys), str(LIMIT)]
    # Other allocators, and this one without its threshold, hold memory back for later.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert not ended.returncode, ended.stderr
    size, count = ended.stdout.split()
    return float(size), int(count)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "keys"), [with_all("processor", 6_000_000), with_all("aggregation", 6_000_000), ("texts", 700_000)]
)
def test_a_state_is_restored_in_a_part_of_its_memory(tmp_path: Path, name: str, keys: int) -> None:
    """Its snapshot alone is larger than the memory that the task may have, and its files are several times that."""
    size, _ = run("run", name, tmp_path, keys)
    assert size > LIMIT
    assert run("restore", name, tmp_path, keys)[1] == keys


def test_rows_of_a_piece_are_read_some_at_a_time() -> None:
    """All of them, in order, over the bytes of the piece."""
    rows = 2 * READ_ROWS + 5
    numbers = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(np.arange(rows))])
    data = b"".join(stream_pieces(pa.table([numbers], names=["n"])))
    batches = list(rows_of_stream(data))
    assert [batch.num_rows for batch in batches] == [READ_ROWS, READ_ROWS, 5]
    assert pa.concat_arrays([batch.column(0) for batch in batches]).equals(numbers)


def test_a_piece_has_about_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows with many bytes it has fewer rows, but one at least; of others as many as it may have."""
    assert rows_of_piece(0, 1 << 20) == rows_of_piece(8, 1 << 20) == 1 << 20
    assert rows_of_piece(1 << 10, 1 << 20) == PIECE_BYTES >> 10
    assert rows_of_piece(2 * PIECE_BYTES, 1 << 20) == 1
    monkeypatch.setattr(arrow_pieces, "PIECE_BYTES", 10_000)
    texts = pa.schema([("text", pa.string())])
    store = KeyedStore(pa.schema([("k", pa.string())]), [VariableSpec("text", VALUE, texts)])
    slots = store.slots([pa.array([f"key {n}" for n in range(1000)])], 1000)
    store.variable("text").put(slots, pa.record_batch([pa.array(["x" * 100] * 1000)], schema=texts), 0)
    context = StepContext(0, 1, 1, "texts")
    pieces = [make() for name, make in store.snapshot(context) if name != ABOUT]
    assert len(pieces) > 10
    assert all(sum(memoryview(each).nbytes for each in piece) < 11_000 for piece in pieces)
