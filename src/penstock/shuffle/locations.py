# SPDX-License-Identifier: Apache-2.0
"""Where a URI leads: `pyarrow.fs` knows most; of this machine's also the forms that Spark takes and shows.

These are `file:/folder`, and spaces that are not written as `%20`.
"""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow.fs as pafs

_HERE = ("file:///", "file://localhost/", "file:/")


def is_uri(location: str) -> bool:
    """Whether this names a file system; else it is a path of this machine."""
    return "://" in location or location.startswith("file:/")


def at_uri(location: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI and the path there; raises ValueError or OSError."""
    start = next((start for start in _HERE if location.startswith(start)), None)
    if start is None or (location.startswith("file://") and start == "file:/"):
        found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(location)
        return found
    return pafs.LocalFileSystem(), unquote(location[len(start) - 1 :])
