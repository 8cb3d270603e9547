# SPDX-License-Identifier: Apache-2.0
"""The ledger of a process's work for disks, and the sums of an environment and its tasks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.environment.uses import PROCESSES, HostUses
from penstock.link.figures import UseKind
from penstock.machine.disk_work import DISKS, DiskWork, disk_of
from penstock.partition.file_output import FileOutput
from penstock.shuffle import DatasetId, PartitionId


def test_two_folders_of_one_disk_are_one(tmp_path: Path) -> None:
    """A disk goes by the folder at which it is mounted; what is not there is of the disk that it would be on."""
    disk = disk_of(str(tmp_path))
    assert os.path.ismount(disk)
    work = DiskWork()
    work.has_read(str(tmp_path / "a" / "x"), 10, 0.5)
    work.has_written(str(tmp_path / "b" / "y"), 20, 0.25)
    told = {"read_bytes": 10.0, "read_seconds": 0.5, "write_bytes": 20.0, "write_seconds": 0.25}
    assert work.figures() == {disk: told}


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a second disk")
def test_files_of_partitions_are_counted_by_their_disk(tmp_path: Path) -> None:
    """The bytes that were written, and time that is not nothing."""
    before = DISKS.figures().get(disk_of(str(tmp_path)), {}).get("write_bytes", 0.0)
    file = FileOutput(tmp_path / "data-0", PartitionId(DatasetId("j1", 0), 0, 0))
    file.append([b"x" * 1000])
    file.abort()
    told = DISKS.figures()[disk_of(str(tmp_path))]
    assert told["write_bytes"] - before == 1000
    assert told["write_seconds"] > 0
    assert disk_of("/dev/shm/any") == "/dev/shm"


def test_what_tasks_have_done_is_added_up_by_disk() -> None:
    """A process tells its sums again and again, for one task after the other; another one with its number adds."""
    uses = HostUses(DiskWork())
    for told in (10.0, 15.0, 15.0, 2.0):
        uses.task_told(7, {"write_bytes./data1": told})
    uses.task_told(8, {"write_bytes./data1": 1.0, "read_bytes./data.2": 3.0})
    disks = {each.name: each.figures for each in uses.figures([]) if each.kind is UseKind.DISK}
    assert disks == {"/data1": {"write_bytes": 18.0}, "/data.2": {"read_bytes": 3.0}}
    for pid in range(2 * PROCESSES):
        uses.task_told(pid, {})
    assert len(uses._told) == PROCESSES
