# SPDX-License-Identifier: Apache-2.0
"""A mount that drops: what tests of sources of files are shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from penstock.testing import DEADLINE
from penstock_torture.passing_files import PassingFiles


class Mount(PassingFiles):
    """A file system that drops: `lacks` says which names a listing leaves out, `away` which can't be opened."""

    def __init__(self) -> None:
        super().__init__(pafs.LocalFileSystem())
        self.lacks: Callable[[str], bool] = lambda _: False
        self.away: set[str] = set()
        self.errors: list[OSError] = []
        """The errors that the next reads and listings raise, one each."""
        self.listings = 0
        self.may_list = threading.Event()
        self.may_list.set()

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Not all of them."""
        self.may_list.wait(DEADLINE)
        self.listings += 1
        self._raise()
        return [info for info in super().get_file_info_selector(selector) if not self.lacks(info.base_name)]

    def open_input_file(self, path: str) -> Any:
        """Not if it is away."""
        self._raise()
        if Path(path).name in self.away:
            raise FileNotFoundError(2, "no such file", path)
        return super().open_input_file(path)

    def _raise(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
