# SPDX-License-Identifier: Apache-2.0
"""Deletes checkpoints where no query runs: some of a location's, a whole location, a savepoint.

Rules
- Nothing goes where a query runs, or may run: its sign says so (`running`).
- The checkpoint that a query would go on from goes only with its whole location: an older one in its place would
  have rows published again.
- A checkpoint loses its metadata first. Files of it that others refer to stay, as for a query that runs.
- A whole location loses its newest checkpoint last, and only what is Penstock's: if that is cut short, what is left
  is a location with fewer checkpoints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from pyarrow import fs

from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.first_positions import FIRST_POSITIONS
from penstock.checkpoint.found import Unusable, UsableCheckpoint
from penstock.checkpoint.kept_files import KeptFiles
from penstock.checkpoint.log_files import owner_of
from penstock.checkpoint.newest import NOTE, NewestNote
from penstock.checkpoint.removal import METADATA
from penstock.checkpoint.running import runners
from penstock.checkpoint.stamps import Stamp
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import SettingError
from penstock.machine.disk import Disk


class Deletion:
    """The deletions at one location."""

    def __init__(self, location: str) -> None:
        self._storage = CheckpointStorage(location)
        self._fs, self._root = self._storage.place
        self._disk = Disk(self._fs)

    def refuse_running(self, *, is_forced: bool) -> None:
        """Raise CheckpointError where a query runs, or may run; `is_forced`: it is known that it does not."""
        for runner in runners(self._fs, self._root):
            if runner.is_certain:
                raise CheckpointError(
                    f"a query runs at {self._storage.location} ({runner.text}), and nothing of it is deleted: stop it"
                    " first"
                )
            if not is_forced:
                raise CheckpointError(
                    f"a query may run at {self._storage.location} ({runner.text}): this file system has no locks that"
                    " would tell. If you know that it does not, say --force"
                )

    def checkpoints(self, numbers: Collection[int]) -> list[Stamp]:
        """The stamps of these checkpoints; raises SettingError for one that is not there or may not go alone."""
        history = self._storage.history()
        stamps = {each.stamp.number: each.stamp for each in history}
        newest = max((each.stamp.number for each in history if isinstance(each, UsableCheckpoint)), default=0)
        for number in numbers:
            if number not in stamps:
                raise SettingError(f"{self._storage.location} has no complete checkpoint {number}")
            if number == newest:
                raise SettingError(
                    f"checkpoint {number} is the one that a query goes on from: an older one in its place would have"
                    " rows published again. It goes with the whole location only"
                )
        return [stamps[number] for number in sorted(numbers)]

    def delete(self, stamps: Iterable[Stamp]) -> None:
        """Delete complete checkpoints; raises OSError."""
        note = NewestNote(self._fs, self._root, self._disk)
        note.read()
        files = KeptFiles()
        for each in self._storage.history():
            if not isinstance(each, Unusable):
                files.keep(each.stamp, each.metadata)
        for stamp in stamps:
            note.removing(stamp)
            for folder in files.drop(stamp):
                if folder == stamp or not self._is_complete(folder):
                    self._clear(folder, files.needed(str(folder)))

    def names(self) -> list[str]:
        """The names at the location that are Penstock's, in the order in which they may go."""
        found = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        names = [info.base_name for info in found]
        notes = [name for name in names if name == NOTE or name.startswith(f"{NOTE}-")]
        stamps = sorted(stamp for stamp in map(Stamp.of, names) if stamp is not None)
        logs = [name for name in names if owner_of(name) is not None]
        last = [name for name in names if name.startswith(FIRST_POSITIONS) or name == "owners"]
        return [*notes, *map(str, stamps), *logs, *last]

    def delete_all(self) -> None:
        """Delete all that is Penstock's, and the folder if nothing else is in it; raises OSError."""
        for name in self.names():
            path = f"{self._root}/{name}"
            with contextlib.suppress(FileNotFoundError):
                if Stamp.of(name) is not None:
                    self._clear_metadata(path)
                if self._fs.get_file_info(path).type == fs.FileType.Directory:
                    self._fs.delete_dir(path)
                else:
                    self._fs.delete_file(path)
        if not self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True)):
            with contextlib.suppress(FileNotFoundError):
                self._fs.delete_dir(self._root)

    def _is_complete(self, stamp: Stamp) -> bool:
        return bool(self._fs.get_file_info(f"{self._root}/{stamp}/{METADATA}").type == fs.FileType.File)

    def _clear(self, stamp: Stamp, needed: set[str]) -> None:
        """Remove the metadata of a checkpoint, and then those files of it that are not needed."""
        path = f"{self._root}/{stamp}"
        self._clear_metadata(path)
        if not needed:
            self._fs.delete_dir(path)
            return
        for info in self._fs.get_file_info(fs.FileSelector(path)):
            if info.base_name not in needed:
                self._fs.delete_file(info.path)

    def _clear_metadata(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(f"{path}/{METADATA}")
        self._disk.sync_folder(path)
