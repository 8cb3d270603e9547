# SPDX-License-Identifier: Apache-2.0
"""State in mapped files: the same values, no memory of the task's own, no names, and a full disk is an error."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import NoStorageError
from penstock.stream import run_rows
from penstock.stream.key_index import key_index
from penstock.stream.slot_array import SlotArray
from penstock.stream.state_place import StateFiles, settled, settled_columns, state_in, zeros
from penstock.stream.state_rows import StateRows
from underway import listed


def own_megabytes() -> int:
    """The memory of this process that is no file's."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


def mapped(folder: str) -> int:
    """The number of files of a folder that are mapped into this process."""
    return sum(folder in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_large_state_takes_files_and_no_memory(tmp_path: Path) -> None:
    """A million and a half keys with two numbers each: 100 MB, of which the task's own memory has next to nothing."""
    with state_in(StateFiles([str(tmp_path)])):
        index, values, more = key_index([pa.int64()]), SlotArray(np.int64), SlotArray(np.int64, -1)
        before = own_megabytes()
        for start in range(0, 1_500_000, 50_000):
            keys = np.arange(start, start + 50_000, dtype=np.int64) * 7
            slots = index.slots([pa.Array.from_buffers(pa.int64(), len(keys), [None, pa.py_buffer(keys)])])
            for each in (values, more):
                each.writable(slots, len(index))[slots] = keys
        frozen = values.frozen(len(index))
        slots = np.arange(0, 1_500_000, 3)
        values.writable(slots, len(index))[slots] = 0
        assert own_megabytes() - before < 40
    assert (frozen.values(0, 1_500_000) == np.arange(1_500_000) * 7).all()
    assert (values.at(slots) == 0).all()
    assert (more.at(slots) == slots * 7).all()
    assert not listed(tmp_path), "files have no names"


def test_no_piece_of_state_holds_a_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have a thousand, and a state of 100 GB has more pieces; a map goes with its last array."""
    monkeypatch.setattr(run_rows, "MOST_JOINED", 1)
    folder, schema = str(tmp_path), pa.schema([("s", pa.string())])
    with state_in(StateFiles([folder])):
        before, maps = len(listed(Path("/proc/self/fd"))), mapped(folder)
        rows = StateRows(schema)
        for n in range(50):
            rows.put(np.array([n]), pa.record_batch([pa.array([str(n) * (1 << 17)])], schema=schema))
        assert len(listed(Path("/proc/self/fd"))) <= before
        assert mapped(folder) == maps + 50
        assert rows.take(np.array([7]))["s"][0].as_py() == "7" * (1 << 17)
        taken = zeros(1 << 17, np.int8)[5:]
        del rows
        gc.collect()
        taken[:] = 1
        assert mapped(folder) == maps + 1
    del taken
    gc.collect()
    assert mapped(folder) == maps


def test_batches_and_keys_are_what_they_were(tmp_path: Path) -> None:
    """Texts, nulls, nested rows; what is small, or has dictionaries, stays where it is."""
    rows = pa.record_batch(
        {"a": ["x" * (n % 50) if n % 3 else None for n in range(5_000)], "b": [[n, None] for n in range(5_000)]}
    )
    coded = pa.record_batch({"a": rows["a"].dictionary_encode()})
    with state_in(StateFiles([str(tmp_path)])):
        assert settled(rows).equals(rows)
        assert settled(rows) is not rows
        assert settled(rows.slice(0, 3)).equals(rows.slice(0, 3))
        assert settled(coded) is coded
        assert [each.to_pylist() for each in settled_columns(rows.columns)] == [c.to_pylist() for c in rows.columns]
        assert settled_columns([]) == []
    assert settled(rows) is rows


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    """As the state grows, by an error with the folders, and no signal later; the next folder is tried before."""
    gone = str(tmp_path / "gone")
    with state_in(StateFiles([gone])):
        small = zeros(8, np.int64)
        with pytest.raises(NoStorageError, match=f"state needs 800000 bytes more, and none of {gone} has them"):
            zeros(100_000, np.int64)
    assert not small.any()
    with state_in(StateFiles([gone, str(tmp_path)])):
        assert not zeros(100_000, np.int64).any()
    with (
        state_in(StateFiles([str(tmp_path)])),
        pytest.raises(NoStorageError, match="state needs"),
    ):
        zeros(1 << 50, np.int8)
    gc.collect()
