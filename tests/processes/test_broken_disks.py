# SPDX-License-Identifier: Apache-2.0
"""Directories that fill up, break or go away in mid-job: the job goes on in others, or fails soon and says why.

All processes are real, and so is the full disk where this user may mount one.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from effort import with_all
from penstock.errors import JobError
from penstock.job.core.result import FinishedJob
from penstock.job.shell.master import JobHandle
from penstock.testing import DEADLINE, wait_until
from penstock_torture import gates as gated
from penstock_torture.gates import Gates
from penstock_torture.process_launcher import Nursery
from process_cluster import PRELOADED, ProcessCluster, kill
from underway import listed

pytestmark = pytest.mark.processes

MODES = pytest.mark.parametrize("mode", ["blocking", "hybrid"])


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests of this file."""
    with Nursery(PRELOADED) as nursery:
        yield nursery


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    """Two file systems with room for all rows of the job."""
    paths = [tmp_path / "disk0", tmp_path / "disk1"]
    for number, disk in enumerate(paths):
        disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=4m", "penstock-test", str(disk)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
            assert not number
            pytest.skip("this user may mount no file system")
    yield paths
    for disk in paths:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Somebody else's file that leaves no room."""
    path = disk / "somebody's"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * (16 << 10))
    return path


class Cluster:
    """A cluster of one executor with these directories, so little memory that hybrid partitions are stored, a job."""

    def __init__(self, nursery: Nursery, folder: Path, *directories: Path) -> None:
        conf = {
            "spark.penstock.blocking.directories": ",".join(map(str, directories)),
            "spark.penstock.blocking.reserve": "0",
            "spark.penstock.network.memory": "256k",
            "spark.penstock.network.segmentSize": "16k",
        }
        self.cluster = ProcessCluster(nursery, 1, conf)
        (folder / "gates").mkdir()
        self.gates = Gates(str(folder / "gates"))

    def start(self, mode: str) -> JobHandle:
        """A job of this mode, held in the phase `writing`."""
        handle = self.cluster.submit(gated.stream(self.gates, mode))
        wait_until(lambda: self.gates.pids("p0") and self.gates.pids("p1"), "both producers write")
        if mode == "hybrid":
            found = [Path(each) for each in self.cluster.conf["spark.penstock.blocking.directories"].split(",")]
            wait_until(lambda: sum(len(files(each)) for each in found) >= 2, "both are stored")
        return handle

    def check(self, finished: FinishedJob) -> list[str]:
        """The rows are right; the restarts there were."""
        found = self.cluster.read(finished, gated.rows().schema)
        assert found.sort_by("id").equals(gated.rows().sort_by("id").combine_chunks())
        return [cause for _, name, cause in finished.result.trace if name == "restart"]


@pytest.fixture
def make(nursery: Nursery, tmp_path: Path) -> Iterator[list[Cluster]]:
    """The clusters of a test, closed at its end."""
    made: list[Cluster] = []
    yield made
    for cluster in made:
        cluster.gates.open_all()
        cluster.cluster.close()


def files(folder: Path) -> list[Path]:
    """The things that lie there but folders."""
    return [path for path in listed(folder, "**/*") if path.is_file()]


@MODES
@pytest.mark.parametrize("killed", [with_all(False), True], ids=["", "and a kill"])
def test_a_job_goes_on_in_the_other_directory(
    nursery: Nursery, tmp_path: Path, disks: list[Path], make: list[Cluster], mode: str, killed: bool
) -> None:
    """One of two disks fills up in mid-job, and a producer may be killed: the rows are right, in the other one."""
    cluster = Cluster(nursery, tmp_path, *disks)
    make.append(cluster)
    handle = cluster.start(mode)
    if killed:
        kill(cluster.gates.pids("p0")[0])
    fill(disks[0])
    cluster.gates.open_all()
    causes = cluster.check(handle.wait(DEADLINE))
    assert killed or any("the disk is full" in cause for cause in causes)


@MODES
def test_where_the_only_disk_is_full_the_job_fails_soon_and_says_so(
    nursery: Nursery, tmp_path: Path, disks: list[Path], make: list[Cluster], mode: str
) -> None:
    """It is tried once again; the sentence says what is full and what helps, and nothing stays on the disk."""
    cluster = Cluster(nursery, tmp_path, disks[0])
    make.append(cluster)
    handle = cluster.start(mode)
    other = fill(disks[0])
    cluster.gates.open_all()
    with pytest.raises(JobError) as caught:
        handle.wait(DEADLINE)
    for part in ("the disk is full", str(disks[0]), "blocking.directories", "there is no other directory or host"):
        assert part in str(caught.value)
    wait_until(lambda: files(disks[0]) == [other], "the space is given back")


@MODES
@pytest.mark.parametrize("others", [with_all(0), 1], ids=["the only one", "one of two"])
def test_a_directory_that_is_removed_costs_what_lay_there(
    nursery: Nursery, tmp_path: Path, make: list[Cluster], mode: str, others: int
) -> None:
    """As a cleaner of temporary files does: the folder is made again, or the other one is used."""
    directories = [tmp_path / f"disk{number}" for number in range(1 + others)]
    cluster = Cluster(nursery, tmp_path, *directories)
    make.append(cluster)
    handle = cluster.start(mode)
    shutil.rmtree(directories[0])
    cluster.gates.open_all()
    cluster.check(handle.wait(DEADLINE))


@MODES
def test_a_directory_that_takes_no_files_any_more_is_left_out(
    nursery: Nursery, tmp_path: Path, make: list[Cluster], mode: str
) -> None:
    """In the place of the application's folder there is a file system that nobody writes to."""
    directories = [tmp_path / "disk0", tmp_path / "disk1"]
    cluster = Cluster(nursery, tmp_path, *directories)
    make.append(cluster)
    handle = cluster.start(mode)
    wait_until(lambda: any(listed(directories[0], "penstock-*")), "the folder is there")
    (folder,) = listed(directories[0], "penstock-*")
    folder.rename(tmp_path / "aside")
    folder.symlink_to("/proc/self")
    cluster.gates.open_all()
    cluster.check(handle.wait(DEADLINE))
    folder.unlink()
