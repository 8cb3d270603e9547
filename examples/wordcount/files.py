# SPDX-License-Identifier: Apache-2.0
"""Finds the text files to count, and divides them into parts of much the same size.

A path that is named must be there and be text; of a folder the files that are not text are left out and counted. A
file is seen to be text by reading it, a large one only at its head: should there be something else further back, the
task that reads it says so. Symbolic links to folders are not followed.
"""

from __future__ import annotations

import codecs
import heapq
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import SettingError

HEAD = 4 << 20
RANGE = 8 << 20
DEMO_BYTES = 60_000_000
DEMO_SUFFIXES = frozenset((".py", ".pyi", ".txt", ".rst", ".md", ".c", ".h", ".cfg", ".toml", ".json", ".html"))
_PACKAGES = frozenset(("site-packages", "dist-packages", "__pycache__"))


class InputError(SettingError):
    """A path can't be counted."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """One file and its size."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The files that are going to be counted.

    `skipped` files of folders are not text; `capped` says that there were more.
    """

    files: tuple[TextFile, ...]
    skipped: int = 0
    capped: bool = False

    @property
    def bytes(self) -> int:
        """All files together."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class TextRange:
    """The lines of a file that begin in `start:end`."""

    path: str
    start: int
    end: int


def find_files(paths: Sequence[str]) -> TextFiles:
    """The text files of these files and folders, each once; raises InputError."""
    found: dict[str, TextFile] = {}
    skipped = 0
    for path in paths:
        if not os.path.lexists(path):
            raise InputError(f"{path}: there is no such file or folder")
        named = not Path(path).is_dir()
        for name in (path,) if named else sorted(_walk(path)):
            reason = why_not_text(name)
            if reason and named:
                raise InputError(f"{path}: {reason}")
            if reason:
                skipped += 1
            else:
                found[os.path.realpath(name)] = TextFile(name, Path(name).stat().st_size)
    return TextFiles(tuple(found.values()), skipped)


def find_demo_files(limit: int = DEMO_BYTES) -> TextFiles:
    """Text and source files of the running Python's installation, without installed packages, up to a limit."""
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "include"))
    files: list[TextFile] = []
    total = skipped = 0
    names = (name for folder in folders if Path(folder).is_dir() for name in sorted(_walk(folder, _PACKAGES)))
    for name in dict.fromkeys(names):
        if Path(name).suffix not in DEMO_SUFFIXES:
            continue
        if why_not_text(name):
            skipped += 1
            continue
        size = Path(name).stat().st_size
        if total + size > limit:
            return TextFiles(tuple(files), skipped, capped=True)
        total += size
        files.append(TextFile(name, size))
    return TextFiles(tuple(files), skipped)


def why_not_text(path: str) -> str | None:
    """Why a file can't be counted, or None."""
    if not Path(path).is_file():
        return "it is neither a file nor a folder"
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD)
            is_whole = not file.read(1)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if b"\0" in head:
        return "it is not text (it has a NUL byte)"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=is_whole)
    except UnicodeDecodeError as error:
        return f"it is not text (not UTF-8 at byte {error.start})"
    return None


def share_of(files: Iterable[TextFile], subtask: int, parallelism: int) -> list[TextRange]:
    """One subtask's ranges: large files are cut, and the largest range goes to whoever has least."""
    ranges = [piece for file in files for piece in _ranges(file)]
    loads = [(0, number) for number in range(parallelism)]
    mine = []
    for piece in sorted(ranges, key=lambda item: item.start - item.end):
        load, number = heapq.heappop(loads)
        heapq.heappush(loads, (load + piece.end - piece.start, number))
        if number == subtask:
            mine.append(piece)
    return sorted(mine, key=lambda item: (item.path, item.start))


def _ranges(file: TextFile) -> Iterator[TextRange]:
    for start in range(0, file.size, RANGE):
        yield TextRange(file.path, start, min(file.size, start + RANGE))


def _walk(folder: str, without: frozenset[str] = frozenset()) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: it cannot be read ({error.strerror})")

    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if name not in without)
        yield from (str(Path(place, name)) for name in names)
