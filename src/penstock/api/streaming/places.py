# SPDX-License-Identifier: Apache-2.0
"""Paths and URIs that users write, as a file system and a folder in it."""

from __future__ import annotations

from pyarrow import fs

from penstock.errors import PlanError
from penstock.machine.locations import at_uri, here, is_here, is_uri, path_here


def filesystem_of(path: str, verb: str) -> tuple[fs.FileSystem, str]:
    """The file system and the folder; a path without a scheme is one of this machine. Raises PlanError."""
    if not is_uri(path):
        return here(), path_here(path)
    try:
        return at_uri(path)
    except (ValueError, OSError) as error:
        raise PlanError(f"{verb}: {path} can't be reached: {error}") from error


def one_spelling(location: str) -> str:
    """The path or URI of a checkpointLocation, or of a table: it tells queries apart, and processes understand it.

    One that can't be reached stays as it is: the open that fails says why.
    """
    if not is_uri(location):
        return path_here(location)
    try:
        filesystem, path = at_uri(location)
    except (ValueError, OSError):
        return location
    return path if is_here(filesystem) else location.rstrip("/")
