# SPDX-License-Identifier: Apache-2.0
"""Waits until files and names are on the disk, where a location is a folder of this machine.

A sink publishes rows when a checkpoint is complete, and these are on the disk. So the checkpoint must be there too: a
loss of power would otherwise bring back an older one, and the rows would come again. The task that writes a file
waits for its bytes, the driver for the names in the folders. Other file systems keep what was closed. A file system
that is written in Python may say how to wait: its handler has `sync_file(path)` and `sync_folder(path)`.
"""

from __future__ import annotations

from collections.abc import Callable

from pyarrow import fs

from penstock.machine import durable


class Disk:
    """That of a file system, if any."""

    def __init__(self, filesystem: fs.FileSystem) -> None:
        syncs = durable if isinstance(filesystem, fs.LocalFileSystem) else getattr(filesystem, "handler", None)
        self._sync_file: Callable[[str], None] | None = getattr(syncs, "sync_file", None)
        self._sync_folder: Callable[[str], None] | None = getattr(syncs, "sync_folder", None)

    @property
    def is_needed(self) -> bool:
        """True if anything has to wait for it."""
        return self._sync_file is not None

    def sync_file(self, path: str) -> None:
        """Wait until a file's bytes are on the disk; raises OSError."""
        if self._sync_file is not None:
            self._sync_file(path)

    def sync_folder(self, path: str) -> None:
        """Wait until the names in a folder are; raises OSError."""
        if self._sync_folder is not None:
            self._sync_folder(path)
