# SPDX-License-Identifier: Apache-2.0
"""Waits until files and names are on the disk, where a location is a folder of this machine.

A sink publishes rows when a checkpoint is complete, and these are on the disk. So the checkpoint must be there too: a
loss of power would otherwise bring back an older one, and the rows would come again. The task that writes a file
waits for its bytes, the driver for the names in the folders. Other file systems keep what was closed.
"""

from __future__ import annotations

from pyarrow import fs

from penstock.shuffle import durable


class Disk:
    """That of a file system, if any."""

    def __init__(self, filesystem: fs.FileSystem) -> None:
        self._is_local = isinstance(filesystem, fs.LocalFileSystem)

    def sync_file(self, path: str) -> None:
        """Wait until a file's bytes are on the disk; raises OSError."""
        if self._is_local:
            durable.sync_file(path)

    def sync_folder(self, path: str) -> None:
        """Wait until the names in a folder are."""
        if self._is_local:
            durable.sync_folder(path)
