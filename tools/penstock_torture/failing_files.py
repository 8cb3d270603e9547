# SPDX-License-Identifier: Apache-2.0
"""A file system that fails: as a plan in a file says, in all processes that are shown it, and that loses power.

`PENSTOCK_FILESYSTEMS=penstock_torture.failing_files:seen` shows it, `PENSTOCK_WORLD` names the folder of the world:

    plan.json    the episodes (`Episode`), the seed of their dice, and whether there is power
    journal      what was done and not waited for yet: a crash loses some of it (`penstock_torture.lost_power`)
    trash/       what was removed or replaced, until it is gone for good
    below/       what a process sees in the place of a mount that dropped

Paths are told apart by `places` (a name for each folder of interest); other paths are left alone. An episode begins
when so many calls of its place have been made since its process read the plan, lasts for so many calls, and has one
kind: an error with a number, a list that lacks all or some names, a slow or hanging call, a dropped mount. Which
calls it strikes the seed says, by their order in the process. Writes pass through Python, so that a disk fills in the
middle of a file. Nothing is synced in truth: what a caller waits for is noted in the journal.
"""

from __future__ import annotations

import errno
import json
import os
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from penstock_torture.lost_power import Journal
from penstock_torture.passing_files import PassingFiles

WORLD = "PENSTOCK_WORLD"
ERRORS = ("ENOSPC", "EIO", "EACCES", "ENOENT", "ESTALE", "ETIMEDOUT")
KINDS = (*ERRORS, "empty", "partial", "slow", "hang", "dropped")
_WRITING = frozenset({"write", "open_output_stream", "create_dir", "close"})
_LISTING = frozenset({"get_file_info_selector"})
_SLOW_SECONDS = 0.02
_HANG_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Episode:
    """Calls `first` to `first + calls` of a place fail so, each with this chance."""

    place: str
    kind: str
    first: int
    calls: int
    chance: float = 1.0

    def strikes(self, call: int, operation: str, dice: random.Random) -> bool:
        """Tell whether a call is one of those that fail."""
        if not self.first <= call < self.first + self.calls:
            return False
        if self.kind == "ENOSPC" and operation not in _WRITING:
            return False
        if self.kind in ("empty", "partial") and operation not in _LISTING:
            return False
        return dice.random() < self.chance


class World:
    """The plan, as one process has read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder)
        self._lock = threading.RLock()  # a file that is forgotten is closed wherever its thread is
        self._read_at = (0, 0)
        self._calls: dict[str, int] = {}
        self._look()

    def asked(self, operation: str, path: str) -> Episode | None:
        """A call is made: the episode that strikes it, if any. Raises OSError where there is no power."""
        with self._lock:
            self._look()
            if not self.has_power:
                raise OSError(errno.EIO, "there is no power", path)
            place = self.place_of(path)
            if place is None:
                return None
            call = self._calls[place] = self._calls.get(place, 0) + 1
            found = [each for each in self.episodes if each.place == place]
            return next((each for each in found if each.strikes(call, operation, self._dice)), None)

    def place_of(self, path: str) -> str | None:
        """The name of the folder that a path lies in."""
        return next((name for name, folder in self.places.items() if f"{path}/".startswith(f"{folder}/")), None)

    def below(self, path: str) -> str:
        """The path that stands in for this one after the mount of its place has dropped."""
        place = self.place_of(path)
        assert place is not None  # noqa: S101 - an episode has struck it
        shadow = self.folder / "below" / place
        shadow.mkdir(parents=True, exist_ok=True)
        return str(shadow) + path.removeprefix(self.places[place])

    def picked(self, infos: list[pafs.FileInfo]) -> list[pafs.FileInfo]:
        """Some of a list."""
        return [info for info in infos if self._dice.random() < 0.5]

    def _look(self) -> None:
        """Read the plan, where it has changed."""
        status = (self.folder / "plan.json").stat()
        written = (status.st_ino, status.st_mtime_ns)
        if written == self._read_at:
            return
        plan = json.loads((self.folder / "plan.json").read_text())
        self._read_at = written
        self._calls.clear()
        self._dice = random.Random(plan["seed"])  # noqa: S311 - no secret
        self.has_power: bool = plan["power"]
        self.places: dict[str, str] = plan["places"]
        self.episodes = [Episode(**each) for each in plan["episodes"]]


def write_plan(
    folder: Path, places: dict[str, str], episodes: list[Episode], seed: int = 0, *, power: bool = True
) -> None:
    """Say how the world is from now on, to all processes that are shown it."""
    fields = [{name: getattr(each, name) for name in Episode.__slots__} for each in episodes]
    plan = {"seed": seed, "power": power, "places": places, "episodes": fields}
    fresh = folder / "plan.json.new"
    fresh.write_text(json.dumps(plan))
    fresh.rename(folder / "plan.json")


_worlds: dict[str, World] = {}
_lock = threading.Lock()


def the_world() -> World:
    """That of this process; there is one for each folder."""
    folder = os.environ[WORLD]
    with _lock:
        if folder not in _worlds:
            _worlds[folder] = World(Path(folder))
        return _worlds[folder]


def seen(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """A file system as it is in this world."""
    return pafs.PyFileSystem(FailingFiles(filesystem))


class FailingFiles(PassingFiles):
    """Fails as the plan says."""

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """Each path's; in a dropped mount nothing is there."""
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> pafs.FileInfo:
        there = self._at("get_file_info", path)
        info = super().get_file_info([there])[0]
        return info if there == path else _renamed(info, path)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Those in a folder, all, some or none."""
        path = selector.base_dir
        episode = self._asked("get_file_info_selector", path)
        if episode is None or episode.kind not in ("empty", "partial", "dropped"):
            return super().get_file_info_selector(selector)
        if episode.kind == "dropped":
            there = the_world().below(path)
            below = pafs.FileSelector(there, selector.allow_not_found, selector.recursive)
            infos = super().get_file_info_selector(below)
            return [_renamed(info, path + info.path.removeprefix(there)) for info in infos]
        infos = super().get_file_info_selector(selector)
        return [] if episode.kind == "empty" else the_world().picked(infos)

    def create_dir(self, path: str, recursive: bool) -> None:
        """Make a folder."""
        there = self._at("create_dir", path)
        the_world().journal.making(there)
        super().create_dir(there, recursive)

    def delete_dir(self, path: str) -> None:
        """Remove a folder, file by file as a disk does."""
        there = self._at("delete_dir", path)
        if not the_world().journal.removed(there, is_folder=True):
            super().delete_dir(there)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Remove what is in a folder."""
        super().delete_dir_contents(self._at("delete_dir_contents", path), missing_dir_ok)

    def delete_file(self, path: str) -> None:
        """Remove a file."""
        there = self._at("delete_file", path)
        if not the_world().journal.removed(there, is_folder=False):
            super().delete_file(there)

    def move(self, src: str, dest: str) -> None:
        """Give a file another name."""
        there = self._at("move", src)
        dest = dest if there == src else the_world().below(dest)
        with the_world().journal.moving(there, dest):
            super().move(there, dest)

    def open_input_stream(self, path: str) -> Any:
        """Read it from its start."""
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        """Read it anywhere."""
        there = self._at("open_input_file", path)
        return pa.PythonFile(_Reading(super().open_input_file(there), self, path), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        """Write it anew."""
        there = self._at("open_output_stream", path)
        the_world().journal.making(there)
        return pa.PythonFile(_Writing(super().open_output_stream(there, metadata), self, path), mode="w")

    def sync_file(self, path: str) -> None:
        """Note that its bytes will be there."""
        there = self._at("sync_file", path)
        if not Path(there).exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        the_world().journal.synced(there, is_folder=False)

    def sync_folder(self, path: str) -> None:
        """Note that its names will be there."""
        the_world().journal.synced(self._at("sync_folder", path), is_folder=True)

    def struck(self, operation: str, path: str) -> None:
        """Raise the error of a call on an open file, if it has one."""
        self._asked(operation, path)

    def _at(self, operation: str, path: str) -> str:
        """A call is made: the path that it comes to. Raises OSError where it fails."""
        episode = self._asked(operation, path)
        return the_world().below(path) if episode is not None and episode.kind == "dropped" else path

    def _asked(self, operation: str, path: str) -> Episode | None:
        episode = the_world().asked(operation, path)
        if episode is None:
            return None
        if episode.kind in ("slow", "hang"):
            time.sleep(_SLOW_SECONDS if episode.kind == "slow" else _HANG_SECONDS)
        elif episode.kind in ERRORS:
            number = getattr(errno, episode.kind)
            raise OSError(number, os.strerror(number), path)
        return episode


class _Reading:
    """An open file that is read."""

    def __init__(self, inner: Any, files: FailingFiles, path: str) -> None:
        self._inner, self._files, self._path = inner, files, path
        self.seek, self.tell = inner.seek, inner.tell

    @property
    def closed(self) -> bool:
        """As Python's files say."""
        return bool(self._inner.closed)

    def readable(self) -> bool:
        """As Python's files say."""
        return True

    def seekable(self) -> bool:
        """As Python's files say."""
        return True

    def read(self, size: int | None = None) -> bytes:
        """So many bytes, or all."""
        self._files.struck("read", self._path)
        data: bytes = self._inner.read(None if size is None or size < 0 else size)
        return data

    def close(self) -> None:
        """End it."""
        self._inner.close()


class _Writing:
    """An open file that is written."""

    def __init__(self, inner: Any, files: FailingFiles, path: str) -> None:
        self._inner, self._files, self._path = inner, files, path
        self.tell = inner.tell

    @property
    def closed(self) -> bool:
        """As Python's files say."""
        return bool(self._inner.closed)

    def writable(self) -> bool:
        """As Python's files say."""
        return True

    def write(self, data: Any) -> int:
        """Append."""
        self._files.struck("write", self._path)
        self._inner.write(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Hand on what is held."""
        self._inner.flush()

    def close(self) -> None:
        """End it, also where that fails."""
        if not self.closed:
            try:
                self._files.struck("close", self._path)
            finally:
                self._inner.close()


def _renamed(info: pafs.FileInfo, path: str) -> pafs.FileInfo:
    if info.type == pafs.FileType.NotFound:
        return pafs.FileInfo(path, info.type)
    return pafs.FileInfo(path, info.type, mtime_ns=info.mtime_ns, size=info.size)
