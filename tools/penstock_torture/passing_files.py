# SPDX-License-Identifier: Apache-2.0
"""A file system that hands every call on to another one: what shows tests a world that fails begins with it."""

from __future__ import annotations

from typing import Any

import pyarrow.fs as pafs

from penstock.machine.disk import Disk
from penstock.machine.locations import is_here


class PassingFiles(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Hands all calls on; picklable where `inner` is. `pafs.PyFileSystem(PassingFiles(inner))` is the file system."""

    def __init__(self, inner: pafs.FileSystem) -> None:
        self.inner = inner
        self.is_here = is_here(inner)
        """As `locations.is_here` asks it."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, PassingFiles) and bool(other.inner == self.inner)

    def __hash__(self) -> int:
        return hash((type(self), self.inner.type_name))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner,)

    def get_type_name(self) -> str:
        """As the inner one's."""
        return str(self.inner.type_name)

    def normalize_path(self, path: str) -> str:
        """As the inner one does."""
        return str(self.inner.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """Each path's."""
        found: list[pafs.FileInfo] = self.inner.get_file_info(paths)
        return found

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Those in a folder."""
        found: list[pafs.FileInfo] = self.inner.get_file_info(selector)
        return found

    def create_dir(self, path: str, recursive: bool) -> None:
        """Make a folder."""
        self.inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        """Remove a folder and what is in it."""
        self.inner.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Remove what is in a folder."""
        self.inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        """Refused: nobody here means it."""
        raise PermissionError("everything in a file system is not removed")

    def delete_file(self, path: str) -> None:
        """Remove a file."""
        self.inner.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        """Give a file another name."""
        self.inner.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        """Copy a file."""
        self.inner.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        """Read it from its start."""
        return self.inner.open_input_stream(path, compression=None)

    def open_input_file(self, path: str) -> Any:
        """Read it anywhere."""
        return self.inner.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        """Write it anew."""
        return self.inner.open_output_stream(path, compression=None, metadata=dict(metadata or {}))

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        """Write after its end."""
        return self.inner.open_append_stream(path, compression=None, metadata=dict(metadata or {}))

    def sync_file(self, path: str) -> None:
        """Wait until its bytes are on the disk."""
        Disk(self.inner).sync_file(path)

    def sync_folder(self, path: str) -> None:
        """Wait until the names in a folder are on the disk."""
        Disk(self.inner).sync_folder(path)
