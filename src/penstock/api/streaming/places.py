# SPDX-License-Identifier: Apache-2.0
"""Paths and URIs that users write, as a file system and a folder in it."""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from penstock.shuffle.errors import PlanError
from penstock.shuffle.locations import at_uri, is_uri


def filesystem_of(path: str, verb: str) -> tuple[fs.FileSystem, str]:
    """The file system and the folder; a path without a scheme is one of this machine. Raises PlanError."""
    if not is_uri(path):
        return fs.LocalFileSystem(), str(Path(path).absolute())
    try:
        return at_uri(path)
    except (ValueError, OSError) as error:
        raise PlanError(f"{verb}: {path} can't be reached: {error}") from error
