# SPDX-License-Identifier: Apache-2.0
"""A disk that is full for a moment costs nothing, one that stays full is an error; the system's own ENOSPC."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.partition import patience
from penstock.partition.file_output import FileOutput
from penstock.shuffle import DatasetId, PartitionId

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")

PARTITION = PartitionId(DatasetId("job", 0), 0, 1)


class FullFor:
    """Puts a full device in the place of a file, and the file back at the pause number `pauses`; it never sleeps."""

    def __init__(self, output: FileOutput, pauses: int) -> None:
        self._output = output
        self._left = pauses
        self._own = os.dup(output._fd)
        with Path("/dev/full").open("r+b", buffering=0) as full:
            os.dup2(full.fileno(), output._fd)

    def pause(self, _: float) -> None:
        """Count down instead of a sleep."""
        self._left -= 1
        if not self._left:
            self.close()

    def close(self) -> None:
        """There is room again."""
        os.dup2(self._own, self._output._fd)
        os.close(self._own)


def test_a_fullness_that_passes_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes go on where they were cut off, when somebody else's files are gone."""
    output = FileOutput(tmp_path / "p", PARTITION)
    output.append([b"before"])
    full = FullFor(output, 3)
    monkeypatch.setattr(patience, "pause", full.pause)
    output.append([b" and", b" behind"])
    output.publish()
    assert (tmp_path / "p").read_bytes() == b"before and behind"


def test_a_disk_that_stays_full_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the patience is over, with the remedy, and the file is gone."""
    output = FileOutput(tmp_path / "p", PARTITION)
    full = FullFor(output, 0)
    monkeypatch.setattr(patience, "SECONDS", 0.0)
    with pytest.raises(StorageError, match=r"disk is full.*spark\.penstock\.blocking\.directories"):
        output.append([b"x"])
    assert list(tmp_path.iterdir()) == []
    os.close(full._own)


def test_a_reserve_that_is_kept_again_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where the room that must stay free was used by others for a moment."""
    room = [0]

    class System:
        f_frsize = 1

        @property
        def f_bavail(self) -> int:
            """The blocks that are free now."""
            return room[0]

    monkeypatch.setattr(os, "fstatvfs", lambda _: System())
    monkeypatch.setattr(patience, "pause", lambda _: room.__setitem__(0, 1 << 20))
    output = FileOutput(tmp_path / "p", PARTITION, reserve=1000)
    output.append([b"x" * 100])
    output.publish()
    assert (tmp_path / "p").stat().st_size == 100
