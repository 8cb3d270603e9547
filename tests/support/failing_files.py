# SPDX-License-Identifier: Apache-2.0
"""File systems of a world that fails, for tests of a checkpoint location: each call passes a gate first."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.checkpoint.savepoints import SavepointFolder
from penstock.checkpoint.storage import CheckpointStorage
from penstock.machine.locations import FILESYSTEMS
from penstock_torture.passing_files import PassingFiles

Gate = Callable[[str, str], None]
"""Called ahead of each call with its name and path; raises what that is to raise. Of a write half is done then."""
_T = TypeVar("_T")
Handler = Callable[[pafs.FileSystem], PassingFiles]
"""Shows a file system as another one."""
_handlers: list[Handler] = []
_GATED = frozenset(
    [
        "get_file_info",
        "get_file_info_selector",
        "create_dir",
        "delete_dir",
        "delete_file",
        "move",
        "open_input_stream",
        "open_input_file",
        "open_output_stream",
        "sync_file",
        "sync_folder",
    ]
)


class GatedFiles(PassingFiles):
    """Asks `gate` ahead of every call; waits for no disk."""

    def __init__(self, inner: pafs.FileSystem, gate: Gate) -> None:
        super().__init__(inner)
        self.gate = gate

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in _GATED:
            return found

        def passed(*args: Any, **kwargs: Any) -> Any:
            self.gate(name, _path(args))
            if name.startswith("sync"):
                return None
            opened = found(*args, **kwargs)
            return pa.PythonFile(_Output(opened, args[0], self.gate), "w") if name == "open_output_stream" else opened

        return passed


class _Output:
    """A file that is written: its bytes and its end pass the gate too."""

    closed = False

    def __init__(self, inner: Any, path: str, gate: Gate) -> None:
        self._inner = inner
        self._path = path
        self._gate = gate

    def write(self, data: bytes) -> int:
        try:
            self._gate("write", self._path)
        except BaseException:
            self._inner.write(data[: len(data) // 2])
            raise
        self._inner.write(data)
        return len(data)

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            try:
                self._gate("close", self._path)
            finally:
                with suppress(OSError):
                    self._inner.close()


def gated(location: Path | str, gate: Gate) -> CheckpointStorage:
    """The driver's side of a location whose files pass a gate; it does not wait between its tries."""
    return shown_through(
        lambda below: GatedFiles(below, gate), lambda: CheckpointStorage(str(location), (0, 0, 0), (0, 0, 0))
    )


def gated_savepoint(folder: Path | str, gate: Gate) -> SavepointFolder:
    """The folder of a savepoint whose files pass a gate."""
    return shown_through(lambda below: GatedFiles(below, gate), lambda: SavepointFolder(str(folder), (0, 0, 0)))


def shown_through(handler: Handler, make: Callable[[], _T]) -> _T:
    """The thing that `make` opens, which sees its files as the handler shows them."""
    _handlers.append(handler)
    try:
        with patch.dict(os.environ, {FILESYSTEMS: f"{__name__}:seen"}):
            return make()
    finally:
        _handlers.pop()


def seen(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """The file system that the environment names."""
    return pafs.PyFileSystem(_handlers[-1](filesystem))


def _path(args: tuple[Any, ...]) -> str:
    first = args[0]
    if isinstance(first, pafs.FileSelector):
        return str(first.base_dir)
    return str(first[0] if isinstance(first, list) else first)
