# SPDX-License-Identifier: Apache-2.0
"""A writer lays streams into segments or its own file: every reader gets its bytes once and in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice
from penstock.link.frames import ALL
from penstock.partition import stretched_file
from penstock.partition.extents import OWN, Extent, data_name
from penstock.partition.stretched_file import StretchedFile
from penstock.services.local import builders, own_file
from penstock.services.local.builders import OwnSegments, SharedSegment
from penstock.services.local.own_file import OwnFile
from penstock.shuffle import DatasetId, PartitionId

SEGMENT = 64
SUBPARTITIONS = 3


class Desk:
    """Fresh segments, and what is shipped of them: the bytes are copied when they are shipped, as a reader would.

    There are as many segments as are granted; without a number, as many as are wanted.
    """

    def __init__(self, shared: bool, granted: int | None = None) -> None:
        self.granted = granted
        self.segments: list[bytearray] = []
        self.open: set[int] = set()
        self.streams = [b""] * SUBPARTITIONS
        self.slices = 0
        self.builders = (
            SharedSegment(self.take, self.note) if shared else OwnSegments(SUBPARTITIONS, self.take, self.note)
        )

    def take(self) -> BufferBuilder | None:
        """A fresh segment, if one is granted."""
        if self.granted is not None:
            if not self.granted:
                return None
            self.granted -= 1
        self.segments.append(bytearray(SEGMENT))
        self.open.add(len(self.segments) - 1)
        return BufferBuilder(len(self.segments) - 1, memoryview(self.segments[-1]))

    def note(self, target: int, piece: BufferSlice) -> None:
        """Ship a slice."""
        data = bytes(self.segments[piece.segment][piece.offset : piece.offset + piece.length])
        self.slices += bool(data)
        assert piece.segment in self.open, "shipped behind its end"
        if piece.finished:
            self.open.discard(piece.segment)
        for reader in range(SUBPARTITIONS) if target == ALL else [target]:
            self.streams[reader] += data


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([*range(SUBPARTITIONS), ALL]), st.lists(st.integers(0, 90), min_size=1, max_size=3)
        ),
        st.just("commit"),
        st.just("finish"),
    ),
    max_size=40,
)


@given(steps=STEPS, shared=st.booleans())
def test_every_reader_gets_its_bytes_once_and_in_order(steps: list[object], shared: bool) -> None:
    """Any mixture of parts for one and for all, commits and ends; no segment stays open after the end."""
    patch = pytest.MonkeyPatch()
    patch.setattr(builders, "SLICE_BYTES", 50)
    patch.setattr(builders, "GATHER_BYTES", 120)
    desk = Desk(shared)
    expected = [b""] * SUBPARTITIONS
    number = 0
    for step in steps:
        if isinstance(step, tuple):
            target, sizes = step
            parts = []
            for size in sizes:
                number += 1
                parts.append(bytes([number % 251]) * size)
            desk.builders.append(target, parts)
            for reader in range(SUBPARTITIONS) if target == ALL else [target]:
                expected[reader] += b"".join(parts)
        elif step == "commit":
            desk.builders.commit()
            assert desk.streams == expected, "committed is shipped"
        else:
            desk.builders.finish()
            assert not desk.open
    assert desk.builders.finish()
    patch.undo()
    assert desk.streams == expected
    assert not desk.open


@given(steps=STEPS, shared=st.booleans(), grants=st.lists(st.integers(0, 3), max_size=60))
def test_what_finds_no_segment_is_laid_out_when_there_is_one(
    steps: list[object], shared: bool, grants: list[int]
) -> None:
    """Segments come at any time: what is pending goes out before anything else, and nothing is lost or doubled."""
    patch = pytest.MonkeyPatch()
    patch.setattr(builders, "SLICE_BYTES", 50)
    patch.setattr(builders, "GATHER_BYTES", 120)
    desk = Desk(shared, granted=0)
    expected = [b""] * SUBPARTITIONS

    def settle() -> None:
        while desk.builders.has_pending:
            before = desk.streams[:]
            desk.granted = grants.pop() if grants else 1
            assert desk.builders.relieve() is not desk.builders.has_pending
            assert all(now.startswith(then) for now, then in zip(desk.streams, before, strict=True))

    for number, step in enumerate(steps):
        settle()
        if isinstance(step, tuple):
            target, sizes = step
            parts = [bytes([number % 251]) * size for size in sizes]
            desk.builders.append(target, parts)
            for reader in range(SUBPARTITIONS) if target == ALL else [target]:
                expected[reader] += b"".join(parts)
        elif step == "commit":
            desk.builders.commit()
            settle()
            desk.builders.commit()
            settle()
            desk.builders.commit()
            assert desk.streams == expected, "committed is shipped"
        else:
            while not desk.builders.finish():
                desk.granted = grants.pop() if grants else 1
            assert not desk.open
    while not desk.builders.finish():
        desk.granted = 1
    patch.undo()
    assert desk.streams == expected
    assert not desk.open


def test_a_shared_segment_is_the_only_one_open_and_its_slices_are_gathered() -> None:
    """However many subpartitions take turns: one segment at a time, and few slices."""
    desk = Desk(shared=True)
    for turn in range(300):
        desk.builders.append(turn % SUBPARTITIONS, [bytes(8)])
        assert len(desk.open) <= 1
    assert desk.slices == 0
    desk.builders.finish()
    assert desk.slices < 60
    assert sum(map(len, desk.streams)) == 2400


def test_a_dropped_builder_ships_nothing() -> None:
    """The segments are gone: what was begun is forgotten."""
    for shared in (True, False):
        desk = Desk(shared)
        desk.builders.append(0, [bytes(8)])
        desk.builders.drop()
        desk.builders.finish()
        assert desk.slices == 0


@given(steps=STEPS)
def test_the_writers_own_file_has_every_readers_bytes_once_and_in_order(steps: list[object]) -> None:
    """Any mixture of parts for one and for all, long and short, and commits: no extent is longer than a stretch."""
    patch = pytest.MonkeyPatch()
    patch.setattr(own_file, "GATHER_BYTES", 120)
    for module in (own_file, stretched_file):
        patch.setattr(module, "LONG", 25)
    patch.setattr(stretched_file, "EXTENT_BYTES", SEGMENT)
    expected = [b""] * SUBPARTITIONS
    noted: list[tuple[int, Extent]] = []
    with tempfile.TemporaryDirectory() as folder:
        own = StretchedFile(PartitionId(DatasetId("job", 0), 0, 1), SUBPARTITIONS, lambda: Path(folder))
        file = OwnFile(own, noted.extend)
        for number, step in enumerate(steps):
            if isinstance(step, tuple):
                target, sizes = step
                parts = [bytes([number % 251]) * size for size in sizes]
                file.append(target, parts)
                for reader in range(SUBPARTITIONS) if target == ALL else [target]:
                    expected[reader] += b"".join(parts)
            elif step == "commit":
                file.commit()
        file.finish()
        patch.undo()
        path = Path(folder) / data_name(OWN)
        stored = path.read_bytes() if path.exists() else b""
    streams = [b""] * SUBPARTITIONS
    for target, extent in noted:
        data = stored[extent.offset : extent.offset + extent.length]
        assert 0 < extent.length <= SEGMENT
        assert (extent.file, extent.checksum) == (OWN, xxhash.xxh3_64_intdigest(data))
        for reader in range(SUBPARTITIONS) if target == ALL else [target]:
            streams[reader] += data
    assert streams == expected
