# SPDX-License-Identifier: Apache-2.0
"""The losses of a disk when the power fails: bytes that nobody waited for, and names that nobody waited for.

A journal notes each change of a name (made, renamed, removed) and each wait. `lose_power` undoes a part of what was
not waited for. Of each folder the changes since the last wait for it stay up to a random one, in their order, as on
disks that keep a journal. A file that was made, and whose bytes nobody waited for, is cut at a random place. A
removed or replaced file lies in the trash until somebody has waited for its folder.

Limits: a change of a name from one folder to another is undone by its old folder's order. A folder that was made
comes with its files or not at all. Lines of the journal are written after the changes, so a wait of another thread
may count less than it did: never more.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_JOURNAL = "journal"
_TRASH = "trash"
_KEEPS_ALL = 0.25
"""The chance that a folder loses nothing."""


class Journal:
    """The journal of a world, as one process writes it."""

    def __init__(self, world: Path) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._count = 0
        (world / _TRASH).mkdir(exist_ok=True)

    def making(self, path: str) -> None:
        """A file or folder is about to be made, or written anew."""
        if Path(path).is_dir():
            return
        self._note("made", path, trash=self._kept(path) if Path(path).exists() else "")

    def synced(self, path: str, *, is_folder: bool) -> None:
        """Somebody has waited for a file's bytes, or for the names in a folder."""
        self._note("folder" if is_folder else "bytes", path)

    def removed(self, path: str, *, is_folder: bool) -> bool:
        """Remove it into the trash; False where there is nothing of that kind."""
        if Path(path).is_dir() != is_folder or not Path(path).exists():
            return False
        place = self._place()
        with contextlib.suppress(FileNotFoundError):
            Path(path).rename(place)
            self._note("removed", path, trash=place)
            return True
        return False

    @contextlib.contextmanager
    def moving(self, source: str, target: str) -> Iterator[None]:
        """A file gets another name in this block."""
        replaced = self._kept(target) if Path(target).is_file() else ""
        yield
        self._note("moved", source, target=target, trash=replaced)

    def _kept(self, path: str) -> str:
        """A second name of a file, in the trash."""
        place = self._place()
        try:
            shutil.copyfile(path, place)
        except OSError:
            return ""
        return place

    def _place(self) -> str:
        with self._lock:
            self._count += 1
            return str(self._world / _TRASH / f"{os.getpid()}-{self._count}")

    def _note(self, what: str, path: str, **more: str) -> None:
        line = json.dumps({"what": what, "path": path, **more}) + "\n"
        descriptor = os.open(self._world / _JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def lose_power(world: Path, chance: random.Random) -> list[str]:
    """Take from the disk what nobody waited for, or some of it; what was done. No process may run meanwhile."""
    changes = _changes(world)
    told = [*_undo(changes, chance), *_tear(changes, chance)]
    keep_all(world)
    return told


def keep_all(world: Path) -> None:
    """All that was done so far is there to stay."""
    (world / _JOURNAL).unlink(missing_ok=True)
    shutil.rmtree(world / _TRASH, ignore_errors=True)
    (world / _TRASH).mkdir()


class _Changes:
    """Changes that nobody waited for: of each folder those of names, in order, and the files with bytes at risk."""

    def __init__(self) -> None:
        self.names: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self.bytes: set[str] = set()
        self.lines: list[dict[str, Any]] = []


def _changes(world: Path) -> _Changes:
    found = _Changes()
    journal = world / _JOURNAL
    for line in journal.read_text().splitlines() if journal.exists() else ():
        entry = json.loads(line)
        what, path = entry["what"], entry["path"]
        if what == "folder":
            found.names.pop(path, None)
        elif what == "bytes":
            found.bytes.discard(path)
        else:
            found.names[str(Path(path).parent)].append(entry)
            if what == "made":
                found.bytes.add(path)
            elif what == "moved" and path in found.bytes:
                found.bytes.discard(path)
                found.bytes.add(entry["target"])
    return found


def _undo(changes: _Changes, chance: random.Random) -> Iterator[str]:
    for folder in sorted(changes.names):
        entries = changes.names[folder]
        kept = len(entries) if chance.random() < _KEEPS_ALL else chance.randint(0, len(entries))
        for entry in reversed(entries[kept:]):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                yield _undone(entry)


def _undone(entry: dict[str, Any]) -> str:
    what, path, trash = entry["what"], entry["path"], entry.get("trash", "")
    if what == "moved":
        Path(entry["target"]).rename(path)
        if trash:
            Path(trash).rename(entry["target"])
    elif what == "removed":
        if not Path(path).exists():
            Path(trash).rename(path)
    elif Path(path).is_dir():
        shutil.rmtree(path)
    else:
        Path(path).unlink()
        if trash:
            Path(trash).rename(path)
    return f"{what} {path} undone"


def _tear(changes: _Changes, chance: random.Random) -> Iterator[str]:
    for path in sorted(changes.bytes):
        if Path(path).is_file():
            size = Path(path).stat().st_size
            left = chance.choice((0, chance.randint(0, size), size))
            os.truncate(path, left)
            yield f"{path} has {left} of {size} bytes"
