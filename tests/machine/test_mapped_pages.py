# SPDX-License-Identifier: Apache-2.0
"""Pages of maps: bytes that are not there are an error, by either way of asking; kernels that may be asked."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from penstock.machine.pages import bring_in, can_populate

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("populates", [True, False])
def test_bytes_that_are_not_there_are_an_error(tmp_path: Path, populates: bool) -> None:
    """A file that was cut, as a disk that fails; what is there is read, from the middle of a page on too."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(600 * PAGE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        bring_in(mapped, file.fileno(), 0, len(mapped), populates=populates)
        os.truncate(path, 500 * PAGE)
        bring_in(mapped, file.fileno(), PAGE + 7, 500 * PAGE - 1, populates=populates)
        for begin in (0, 499 * PAGE + 1, 550 * PAGE):
            with pytest.raises(OSError, match=r"can't be read|it ends at"):
                bring_in(mapped, file.fileno(), begin, 600 * PAGE, populates=populates)


@pytest.mark.parametrize(
    ("release", "populates"),
    [
        ("6.18.5", True),
        ("6.9-rc1", True),
        ("7.0.0-1-cloud", True),
        ("6.8.12", False),
        ("5.15.0-91", False),
        ("", False),
    ],
)
def test_kernels_that_might_ask_for_ever_are_not_asked(release: str, populates: bool) -> None:
    """Before 6.9 a disk that fails is asked again and again."""
    assert can_populate(release) is populates
