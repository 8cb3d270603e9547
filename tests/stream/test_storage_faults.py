# SPDX-License-Identifier: Apache-2.0
"""A checkpoint location that is full, slow, away or read-only: rows go on, checkpoints do when it is well again."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from penstock.checkpoint.coordinator import CheckpointOptions
from penstock.checkpoint.stamps import Stamp
from penstock.record import PartitionerSpec
from penstock.stream.folder_sink import FolderSink
from penstock.stream.rate import SCHEMA, RateSource
from penstock.stream.sinks import SinkOperator
from penstock.testing import DEADLINE
from penstock_torture.local_query import LocalQuery, linear_graph

READ_ONLY = "/sys/kernel"
"""A folder of a file system in which nobody can make anything."""
MANY = 5_000
ASKED = CheckpointOptions(interval=0.02, timeout=0.5, tolerable_failures=MANY)
Lift = Callable[[], object]


class Place:
    """A checkpoint location that is a link, so that a test can put another file system in its place."""

    def __init__(self, folder: Path) -> None:
        self.good = folder / "good"
        self.good.mkdir()
        self.path = folder / "checkpoints"
        self.path.symlink_to(self.good)

    def becomes(self, target: Path | str) -> Lift:
        """It lies there from now on; gives what brings it back."""
        self._point(target)
        return lambda: self._point(self.good)

    def _point(self, target: Path | str) -> None:
        fresh = self.path.with_name("fresh")
        fresh.symlink_to(target)
        fresh.rename(self.path)


def away(place: Place, _: int, __: str) -> Lift:
    """The file system is not mounted."""
    return place.becomes(place.path.with_name("nowhere"))


def read_only(place: Place, _: int, __: str) -> Lift:
    """It lets nobody write."""
    return place.becomes(READ_ONLY)


def full(place: Place, last: int, owner: str) -> Lift:
    """It has folders and names, and no room for a byte."""
    disk = place.path.with_name("full")
    for number in range(last, last + 100):
        (folder := disk / str(Stamp.by(owner, number))).mkdir(parents=True)
        for part in ("v0.0", "v1.0"):
            (folder / part).symlink_to("/dev/full")
    return place.becomes(disk)


def slow(place: Place, last: int, owner: str) -> Lift:
    """A write begins, does not get on until the fault is lifted, and holds up those behind it."""
    held = place.path.with_name("held")
    os.mkfifo(held)
    folder = place.good / str(Stamp.by(owner, last + 2))
    folder.mkdir()
    os.link(held, folder / "v0.0")

    def read() -> None:
        """The thread that waits in the write goes on, into a pipe that has room for it."""
        reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
        assert select.select([reader], [], [], DEADLINE)[0]
        os.close(reader)

    return read


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(away, "Cannot create directory"), (read_only, "Permission denied|not permitted|Read-only"),
     (full, "No space left"), (slow, r"expired after 0.5 s.*\(\(0, 0\)|has not acknowledged")],
)  # fmt: skip
def test_a_fault_of_the_location_stops_checkpoints_and_no_row(
    tmp_path: Path, fault: Callable[[Place, int, str], Lift], reason: str
) -> None:
    """Checkpoints fail, each with its reason; rows flow, and none is lost; when the fault is over, all is well."""
    place = Place(tmp_path)
    sink = FolderSink(pafs.LocalFileSystem(), str(tmp_path / "out"), SCHEMA, "q")
    graph = linear_graph(
        RateSource(4000, 1, None),
        [(1, (), SCHEMA, None), (1, (SinkOperator(sink),), SCHEMA, PartitionerSpec("to_one"))],
    )
    with LocalQuery(graph, str(place.path), ASKED) as query:
        query.start()
        query.run_until(lambda: bool(query.completed), "a first checkpoint")
        lift = fault(place, query.completed[-1], query.owner)
        known = len(query.given_up)
        query.run_until(lambda: len(query.given_up) >= known + 3, "three checkpoints have failed")
        rows = query.lines[1, 0].metrics.get("rows_in", 0.0)
        query.run_until(lambda: query.lines[1, 0].metrics.get("rows_in", 0.0) > rows, "rows flow")
        lift()
        completed = len(query.completed)
        query.run_until(lambda: len(query.completed) > completed, "a checkpoint is complete again")
        query.stop()
        query.run_through()
        assert not query.failures
        assert re.search(reason, " ".join(query.given_up[known:]))
    found = sorted(ds.dataset(tmp_path / "out", format="parquet").to_table()["value"].to_pylist())
    assert found == list(range(len(found)))
    assert found
