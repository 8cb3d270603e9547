# SPDX-License-Identifier: Apache-2.0
"""The file systems behind paths and URIs: the one place from which those of pipelines and queries come.

`pyarrow.fs` knows most URIs. Of this machine's it does not know the forms that Spark takes and shows: `file:/folder`,
and spaces that are not written as `%20`.

`PENSTOCK_FILESYSTEMS` in the environment may name a function, as `module:attribute`. It gets each file system that is
made here, and gives the one that is used. So a run can be shown a world that fails: a disk that is full, a mount that
drops. A person who sets it sets it for the driver and for the hosts.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow.fs as pafs

FILESYSTEMS = "PENSTOCK_FILESYSTEMS"
_HERE = ("file:///", "file://localhost/", "file:/")


def is_uri(location: str) -> bool:
    """Tell whether this names a file system; else it is a path of this machine."""
    return "://" in location or location.startswith("file:/")


def at_uri(location: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI and the path there; raises ValueError or OSError."""
    start = next((start for start in _HERE if location.startswith(start)), None)
    if start is None or (location.startswith("file://") and start == "file:/"):
        filesystem, path = pafs.FileSystem.from_uri(location)
        return _as_seen(filesystem), path.rstrip("/") or path
    return here(), path_here(unquote(location[len(start) - 1 :]))


def path_here(path: str) -> str:
    """A path of this machine in one spelling: absolute, without `.`, `..`, a `/` at its end and a `~` for the home.

    Names of links stay, but in front of a `..`, which is the folder around the one that a link leads to.
    """
    plain = Path(path).expanduser() if path == "~" or path.startswith("~/") else Path(path)
    parts = plain.absolute().parts
    if ".." not in parts:
        return str(plain.absolute())
    behind = len(parts) - parts[::-1].index("..")
    return str(Path(os.path.realpath(Path(*parts[:behind])), *parts[behind:]))


def here() -> pafs.FileSystem:
    """The file system of this machine."""
    return _as_seen(pafs.LocalFileSystem())


def is_here(filesystem: pafs.FileSystem) -> bool:
    """Tell whether paths of this file system are paths of this machine."""
    handler = getattr(filesystem, "handler", None)
    return isinstance(filesystem, pafs.LocalFileSystem) or bool(getattr(handler, "is_here", False))


@contextmanager
def names_in(folder: str) -> Iterator[None]:
    """Read the names of a listing; a name that is no UTF-8, which Arrow can't open either, is a ValueError with it.

    Spark leaves such files out without a word, or reads them, as the JVM's locale is.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{folder} has a file whose name is not UTF-8: {error.object!r}: rename it, or move it elsewhere"
        ) from None


def _as_seen(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """As the environment's function shows it, if it names one."""
    named = os.environ.get(FILESYSTEMS)
    if not named:
        return filesystem
    module, _, attribute = named.partition(":")
    return getattr(importlib.import_module(module), attribute)(filesystem)
