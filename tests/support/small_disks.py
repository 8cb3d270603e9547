# SPDX-License-Identifier: Apache-2.0
"""A file system with little room, for what happens where there is none left."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A folder that is a file system of its own in this block; the test is skipped where the user may mount none."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "penstock-test", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("this user may mount no file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
