# SPDX-License-Identifier: Apache-2.0
"""Looks whether all files that a checkpoint needs are at its location, as long as they were written.

A recovery looks before it takes a checkpoint, and a commit before it makes one: a mount that is away while a task
writes leaves the task's file below the mount point, and nothing fails.

On this machine each file is asked for. Another file system answers from afar, so a folder of several needed files is
listed. A file that a list does not show, or shows with another size, is asked for by its name: a list may be an old
one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pyarrow import fs

from penstock.checkpoint.errors import CorruptCheckpointError
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.machine.locations import is_here


def look_at_files(filesystem: fs.FileSystem, root: str, metadata: CheckpointMetadata, location: str) -> None:
    """Raise CorruptCheckpointError where a file that it needs is away, or not as long as it was; or OSError.

    `location` is what messages call `root`.
    """
    own = {part.path: part.size for part in metadata.parts.values()}
    needed = {path: size for part in metadata.parts.values() for path, size in part.referred.items()} | own
    sizes = {} if is_here(filesystem) else _listed(filesystem, root, needed)
    asked = [path for path, size in needed.items() if not _is_whole(sizes.get(path), size, is_own=path in own)]
    infos = filesystem.get_file_info([f"{root}/{path}" for path in asked]) if asked else []
    for path, info in zip(asked, infos, strict=True):
        if info.type != fs.FileType.File:
            raise CorruptCheckpointError(f"{location}/{path} is missing: {needed[path]} bytes were written")
        if not _is_whole(info.size, needed[path], is_own=path in own):
            raise CorruptCheckpointError(f"{location}/{path} has {info.size} bytes: {needed[path]} were written")


def _is_whole(found: int | None, size: int, *, is_own: bool) -> bool:
    """Tell whether a found file is all there; one that another part refers to may have grown since."""
    return found is not None and (found == size or (found > size and not is_own))


def _listed(filesystem: fs.FileSystem, root: str, paths: Iterable[str]) -> dict[str, int]:
    """The sizes of files in the folders in which several of these lie, by their paths."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        names[path.rpartition("/")[0]].append(path)
    found: dict[str, int] = {}
    for folder in (folder for folder, within in names.items() if len(within) > 1):
        infos = filesystem.get_file_info(fs.FileSelector(f"{root}/{folder}", allow_not_found=True))
        found |= {f"{folder}/{info.base_name}": info.size for info in infos if info.type == fs.FileType.File}
    return found
