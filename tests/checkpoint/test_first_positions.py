# SPDX-License-Identifier: Apache-2.0
"""The positions at which sources begin are written down before the query has the location, and asked for once."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.checkpoint.deletion import Deletion
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.first_positions import FIRST_POSITIONS, FirstPositions
from penstock.machine.locations import here


def test_what_is_written_is_read_again_or_refused(tmp_path: Path) -> None:
    """All of it, in the place of what was there; a byte that has changed is named; it goes with its location."""
    positions = FirstPositions(here(), str(tmp_path))
    assert positions.read() == {}
    for found in ({"a": ("kafka in", b"\x00\xff"), "b": ("delta /t", b"")}, {"b": ("delta /t", b"2")}):
        positions.write(found)
        assert positions.read() == found
    assert [each.name for each in tmp_path.iterdir()] == [FIRST_POSITIONS]
    path = tmp_path / FIRST_POSITIONS
    path.write_bytes(path.read_bytes()[:-1] + b"3")
    with pytest.raises(CheckpointError, match="first-positions is damaged, so nobody knows where the query began"):
        positions.read()
    assert Deletion(str(tmp_path)).names() == [FIRST_POSITIONS]
