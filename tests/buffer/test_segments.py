# SPDX-License-Identifier: Apache-2.0
"""Segment memory with real descriptors, seals, mappings and processes."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from holdings import open_descriptors
from penstock.buffer import SegmentMemory, segments
from penstock.errors import InsufficientBuffersError, ProtocolError
from penstock.testing import DEADLINE

SIZE = 8192


def test_segments_are_disjoint_and_cover_the_memory() -> None:
    """Writing one segment leaves its neighbours alone, and together they are the whole file."""
    with SegmentMemory.create(4, SIZE) as memory:
        assert (memory.count, memory.segment_size) == (4, SIZE)
        for index in range(4):
            memory.view(index)[:] = bytes([index + 1]) * SIZE
        assert [bytes(memory.view(index)) for index in range(4)] == [bytes([i + 1]) * SIZE for i in range(4)]
        assert os.pread(memory.fd, 4 * SIZE, 0) == b"".join(bytes([i + 1]) * SIZE for i in range(4))


def test_memory_is_sealed_against_resizing() -> None:
    """No holder of the descriptor can shrink it (a SIGBUS for the others), grow it or undo the seals."""
    with SegmentMemory.create(2, SIZE) as memory:
        seals = fcntl.fcntl(memory.fd, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        for size in (SIZE, 3 * SIZE):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_another_process_sees_and_changes_the_same_memory() -> None:
    """A spawned process that attaches by the descriptor reads what was written here and writes back in place."""
    script = (
        "import sys\n"
        "from penstock.buffer import SegmentMemory\n"
        f"with SegmentMemory.attach(int(sys.argv[1]), 3, {SIZE}) as memory:\n"
        "    word = bytes(memory.view(1, 100, 5))\n"
        "    memory.view(2, 7, 5)[:] = word[::-1]\n"
    )
    with SegmentMemory.create(3, SIZE) as memory:
        memory.view(1, 100, 5)[:] = b"hello"
        done = subprocess.run(
            [sys.executable, "-c", script, str(memory.fd)],
            pass_fds=[memory.fd],
            timeout=DEADLINE,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert bytes(memory.view(2, 7, 5)) == b"olleh"
        assert not any(memory.view(0))


def test_whole_views_are_cached_and_parts_are_checked() -> None:
    """Taking a segment's view costs no new object, and nothing outside of a segment can be named."""
    with SegmentMemory.create(2, SIZE) as memory:
        assert memory.view(1) is memory.view(1)
        assert len(memory.view(1, 8)) == SIZE - 8
        assert len(memory.view(1, SIZE, 0)) == 0
        for wrong in [(2,), (-1,), (0, -8, 8), (0, 0, SIZE + 1), (0, SIZE, 1), (0, 8, -1)]:
            with pytest.raises(ProtocolError, match="segment"):
                memory.view(*wrong)


def test_geometry_must_fit_the_descriptor() -> None:
    """A peer that announces another geometry is refused, and its descriptor does not stay open."""
    with SegmentMemory.create(2, SIZE) as memory:
        before = open_descriptors()
        for count, size in [(3, SIZE), (2, SIZE * 2), (0, SIZE), (-2, -SIZE)]:
            with pytest.raises(ProtocolError, match="do not make"):
                SegmentMemory.attach(os.dup(memory.fd), count, size)
        assert open_descriptors() <= before


def test_close_is_idempotent_and_leaks_no_descriptor() -> None:
    """After creating, attaching and closing many times the process has open what it had before."""
    before = open_descriptors()
    for _ in range(20):
        memory = SegmentMemory.create(2, SIZE)
        attached = SegmentMemory.attach(os.dup(memory.fd), 2, SIZE)
        attached.view(0)[:3] = b"abc"
        assert bytes(memory.view(0, 0, 3)) == b"abc"
        for each in (memory, attached, memory):
            each.close()
        assert memory.closed
    assert open_descriptors() <= before


def test_it_is_mapped_where_somebody_looks_into_it() -> None:
    """Its creator maps nothing until then, whoever attaches does at once; closed without that, it is as closed."""
    with SegmentMemory.create(2, SIZE) as memory:
        assert not memory.is_mapped
        with SegmentMemory.attach(os.dup(memory.fd), 2, SIZE) as attached:
            assert attached.is_mapped
            attached.view(1)[:3] = b"abc"
        assert bytes(memory.view(1, 0, 3)) == b"abc"
        assert memory.is_mapped
    unused = SegmentMemory.create(2, SIZE)
    unused.close()
    assert unused.closed
    with pytest.raises(ValueError, match="closed"):
        unused.view(0)


def test_views_held_elsewhere_survive_close() -> None:
    """An array over a segment stays readable after `close`, and the mapping goes when the array does."""
    before = open_descriptors()
    memory = SegmentMemory.create(2, SIZE)
    memory.view(0)[:4] = b"\x01\x02\x03\x04"
    array = np.frombuffer(memory.view(0, 0, 4), np.uint8)
    memory.close()
    assert array.tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="closed"):
        memory.view(0)
    with pytest.raises(ValueError, match="closed"):
        _ = memory.fd
    del array
    gc.collect()
    assert open_descriptors() <= before


def test_without_memfd_an_unlinked_file_takes_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the system has no memfd, two mappings of the fallback share memory and no file is left in sight."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with SegmentMemory.create(2, SIZE) as memory:
        assert list(tmp_path.iterdir()) == []
        with SegmentMemory.attach(os.dup(memory.fd), 2, SIZE) as other:
            memory.view(1)[:2] = b"ok"
            assert bytes(other.view(1, 0, 2)) == b"ok"


def test_kernel_without_populate_faults_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """An advice that the kernel does not know is asked for once and then left alone."""
    monkeypatch.setattr(segments, "MADV_POPULATE_READ", 12345)
    with SegmentMemory.create(2, SIZE) as memory:
        memory.view(0)[:2] = b"ab"
        memory.view(1)[:2] = b"cd"
        assert os.pread(memory.fd, 2, SIZE) == b"cd"


def test_memory_that_cannot_be_had_names_the_setting() -> None:
    """A size beyond the address space is refused with the figure and the setting to lower."""
    before = open_descriptors()
    with pytest.raises(InsufficientBuffersError, match=r"spark\.penstock\.network\.memory"):
        SegmentMemory.create(1 << 40, 1 << 18)
    with pytest.raises(ValueError, match="positive"):
        SegmentMemory.create(0, SIZE)
    assert open_descriptors() <= before
