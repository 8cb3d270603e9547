# SPDX-License-Identifier: Apache-2.0
"""The meaning of a path to a reader: a file, a folder, a glob, a list of these, here or behind a URI.

Of a folder all files are read, those of its subfolders too, as far as a `FileChoice` takes them.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs

from penstock.errors import SettingError
from penstock.machine.file_choice import EACH_FILE, FileChoice, is_hidden
from penstock.machine.locations import at_uri, here, is_uri, names_in

PathLike = str | Path


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file with its size, and its path within the folder that was named; that is empty for a file by itself."""

    path: str
    size: int
    within: str = ""


def data_files(
    path: PathLike | Sequence[PathLike], verb: str, choice: FileChoice = EACH_FILE
) -> tuple[pafs.FileSystem, tuple[ListedFile, ...]]:
    """The file system, and the files, each once; raises SettingError for what is not there."""
    given = [path] if isinstance(path, str | Path) else list(path)
    if not given:
        raise SettingError(f"{verb}: the list of paths is empty")
    found = [_found(str(item), verb, choice) for item in given]
    filesystem = found[0][0]
    if any(other != filesystem for other, _ in found):
        raise SettingError(f"{verb}: all paths must be on one file system")
    files: dict[str, ListedFile] = {}
    for file in (file for _, listed in found for file in listed):
        files.setdefault(file.path, file)
    return filesystem, tuple(files.values())


def located(path: str) -> tuple[pafs.FileSystem, list[str]]:
    """The file system of a path or URI, and its path there; of a glob what it matches, which may be nothing."""
    if is_uri(path):
        try:
            filesystem, inner = at_uri(path)
        except (ValueError, OSError) as error:
            raise SettingError(_not_opened(path, error)) from error
        return filesystem, [inner]
    inner = str(Path(path).expanduser().absolute())
    if glob.has_magic(inner) and not Path(inner).exists():
        # Hadoop has `[^a]` too. What no reader takes of a folder it takes by no pattern either, as in Spark.
        found = glob.glob(inner.replace("[^", "[!"), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute one
        start = len(os.path.commonpath([inner[: inner.index("**")], *found])) + 1 if "**" in inner and found else 0
        names = ((each, each[start:] if start else Path(each).name) for each in found)
        return here(), sorted(each for each, name in names if not is_hidden(name))
    return here(), [inner]


def _not_opened(path: str, error: Exception) -> str:
    """In one line: without libhdfs, Arrow's own text lists each place where it looked for it."""
    reason, hint = str(error).partition("\n")[0], "a local path, or a URI that pyarrow.fs knows (s3, gs, hdfs)"
    scheme, _, rest = path.partition("://")
    if scheme in {"s3a", "s3n"}:  # Hadoop's names
        hint = f"s3://{rest}"
    return f"{path} cannot be opened: {reason}: write {hint}"


def stored_at(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a table's folder or file as its log or catalog names it, and the path there."""
    filesystem, inner = at_uri(uri) if is_uri(uri) else (here(), uri)
    return filesystem, inner.rstrip("/")


def _found(path: str, verb: str, choice: FileChoice) -> tuple[pafs.FileSystem, list[ListedFile]]:
    filesystem, names = located(path)
    if not names:
        raise SettingError(f"{verb}: nothing matches {path}: check the pattern, and that the driver sees the folder")
    return filesystem, [file for name in names for file in _files(filesystem, name, path, verb, choice)]


def _files(filesystem: pafs.FileSystem, inner: str, shown: str, verb: str, choice: FileChoice) -> list[ListedFile]:
    info = filesystem.get_file_info(inner)
    if info.type == pafs.FileType.NotFound:
        raise SettingError(f"{verb}: {shown} does not exist: check the path; the driver and all workers must see it")
    if info.is_file:
        return [ListedFile(inner, info.size)] if choice.takes(inner, info.mtime_ns or 0) else []
    start = len(inner.rstrip("/")) + 1
    with names_in(shown):
        entries = [
            each for each in filesystem.get_file_info(pafs.FileSelector(inner, recursive=True)) if each.is_file
        ]
        kept = [
            ListedFile(each.path, each.size, each.path[start:])
            for each in entries
            if not is_hidden(each.path[start:]) and choice.takes(each.path, each.mtime_ns or 0)
        ]
    return sorted(kept, key=lambda file: file.path)
