# SPDX-License-Identifier: Apache-2.0
"""Paths and URIs that users write, as a file system and a folder in it."""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from penstock.errors import PlanError
from penstock.machine.locations import at_uri, here, is_here, is_uri


def filesystem_of(path: str, verb: str) -> tuple[fs.FileSystem, str]:
    """The file system and the folder; a path without a scheme is one of this machine. Raises PlanError."""
    if not is_uri(path):
        return here(), str(Path(path).absolute())
    try:
        return at_uri(path)
    except (ValueError, OSError) as error:
        raise PlanError(f"{verb}: {path} can't be reached: {error}") from error


def checkpoints_at(location: str) -> str:
    """A checkpointLocation in one spelling, which tells queries apart, and which processes elsewhere understand.

    One that can't be reached stays as it is: whoever opens it says why.
    """
    if not is_uri(location):
        return str(Path(location).absolute())
    try:
        filesystem, path = at_uri(location)
    except (ValueError, OSError):
        return location
    return str(Path(path)) if is_here(filesystem) else location.rstrip("/")
