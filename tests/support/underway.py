# SPDX-License-Identifier: Apache-2.0
"""The files and processes that come and go while a test looks at them: the one way to look.

They leave out all that goes meanwhile, and find nothing below a folder or a process that is not there (any more). A
test sees its own: below a folder, below a process, or of this run. `tests/house/test_busy_machines.py` finds who
looks in another way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import psutil


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    """The paths in a folder that match as `Path.glob` would have them, in order."""
    only_folders = pattern.endswith("/")
    found = set(_matching(Path(folder), pattern.strip("/").split("/")))
    return sorted(path for path in found if not only_folders or path.is_dir())


def _matching(folder: Path, parts: list[str]) -> Iterator[Path]:
    if not parts:
        yield folder
        return
    first, *rest = parts
    if first == "**":
        yield from _matching(folder, rest)
    for name, is_folder in _entries(folder):
        if first == "**":
            yield from _matching(folder / name, parts) if is_folder else ()
        elif fnmatchcase(name, first):
            yield from _matching(folder / name, rest)


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """The names in a folder, each with whether it is a folder itself; none where it goes."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []


def children(*pids: int) -> list[int]:
    """The processes that these have started, in order."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sorted(map(int, found))


def below(pid: int, word: str = "") -> list[psutil.Process]:
    """The processes that descend from one and have a word in their command lines."""
    with contextlib.suppress(psutil.Error):
        return _those(
            psutil.Process(pid).children(recursive=True), lambda process: word in " ".join(process.cmdline())
        )
    return []


def of_this_run(holds: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """The processes of this run of tests of which something holds, wherever they were re-parented."""
    from holdings import descendants  # which gives each process that loads it a folder of its own

    found = []
    for pid in descendants():
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return _those(found, holds)


def _those(processes: Iterable[psutil.Process], holds: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if holds(process):
                found.append(process)
    return found
