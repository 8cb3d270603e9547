# SPDX-License-Identifier: Apache-2.0
"""The folder of a sink of files: hidden files get the names that readers see, and a mark says that it is the folder.

A hidden file vanishes by the change of its name only, and a consumer may move on whatever it sees. So a file that
checkpoints name, and that has neither name any more, was published: where the folder can be believed. A mount that
dropped shows an empty folder in its place. So the first attempt of a query puts a mark into the folder
(`.folder-<uid>-<owner>`), checkpoints name it, and where it is missing the folder is away. Each attempt that begins
without a checkpoint makes a mark of its own: one that was made below the mount point speaks for nothing later.

Limits: a user who removes hidden files removes rows. If a change of name is a copy and a removal (object stores), a
consumer that takes a file between the two gets it again if the query dies there.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgpack
import pyarrow.fs as pafs

from penstock.checkpoint.errors import CheckpointError
from penstock.machine.disk import Disk

MARK = ".folder-"
"""The beginning of a mark's name."""
_NONE = pafs.FileType.NotFound


@dataclass(frozen=True, slots=True)
class Prepared:
    """The state of a subtask in checkpoints: its folder and the mark there, and the files to be published.

    `files` are names without the dot, behind the folders of a partitioned sink, each with the checkpoint that it was
    prepared for; `epoch` is the number of the checkpoint. Those of earlier versions know no folder, mark or epoch.
    """

    files: Sequence[tuple[int, str]]
    folder: str = ""
    mark: str = ""
    epoch: int = 0

    def packed(self) -> bytes:
        """The bytes in a checkpoint."""
        packed: bytes = msgpack.packb(
            {"files": list(self.files), "folder": self.folder, "mark": self.mark, "epoch": self.epoch}
        )
        return packed

    @classmethod
    def of(cls, state: bytes) -> Prepared:
        """Inverse of `packed`."""
        found = msgpack.unpackb(state)
        fields = found if isinstance(found, dict) else {"files": found}
        return cls(**{**fields, "files": [(number, name) for number, name in fields["files"]]})


class SinkFolder:
    """One folder, as one writer uses it."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, mark: str) -> None:
        self.mark = mark
        self.path = path
        self._fs = filesystem
        self._disk = Disk(filesystem)
        self._renamed: deque[str] = deque()
        """Folders within it in which files got their names: that is on the disk when these were waited for."""

    def make(self) -> None:
        """Make the folder and its mark; both are on the disk, and so are the folders above that had to be made."""
        parents = self._parents()
        self._fs.create_dir(self.path, recursive=True)
        place = f"{self.path}/{self.mark}"
        if self._fs.get_file_info(place).type == _NONE:
            with self._fs.open_output_stream(place):
                pass
            self._disk.sync_file(place)
        self.sync()
        for parent in parents:
            with suppress(PermissionError):  # one may not look into it
                self._disk.sync_folder(parent)

    def _parents(self) -> list[str]:
        """The folder above, and those above that as far as they are not there."""
        found: list[str] = []
        parent = self.path.rpartition("/")[0]
        while parent and self._disk.is_needed:
            found.append(parent)
            if self._fs.get_file_info(parent).type != _NONE:
                break
            parent = parent.rpartition("/")[0]
        return found

    def sync(self) -> None:
        """Wait until the names in it are on the disk."""
        self._sync_within([])
        self._disk.sync_folder(self.path)

    def make_within(self, name: str) -> None:
        """Make the folders of a partitioned sink that a file is to lie in; never the sink's own."""
        at = self.path
        for part in name.split("/")[:-1]:
            at = f"{at}/{part}"
            self._fs.create_dir(at, recursive=False)

    def hidden(self, name: str) -> str:
        """The path of a file that readers skip."""
        within, _, file = name.rpartition("/")
        return f"{self.path}/{within}/.{file}" if within else f"{self.path}/.{file}"

    def _sync_within(self, names: Sequence[str]) -> None:
        """Wait for the names in folders within it, those of these files and those in which files were renamed."""
        if not self._disk.is_needed:
            return
        renamed: list[str] = []
        while self._renamed:  # another thread adds
            renamed.append(self._renamed.popleft())
        try:
            for within in sorted(_folders_of(names) | set(renamed), reverse=True):  # the inner ones first
                try:
                    self._disk.sync_folder(f"{self.path}/{within}")
                except FileNotFoundError:
                    if within in self.names(recursive=True):  # else a consumer took it away with all that was in it
                        raise
        except BaseException:
            self._renamed.extend(renamed)
            raise

    def publish(self, name: str) -> None:
        """Give a prepared file the name that readers see; one that was published is left, wherever it is now.

        Raises OSError where the folder is away, and CheckpointError where that can't be known.
        """
        shown = f"{self.path}/{name}"
        try:
            self._fs.move(self.hidden(name), shown)
        except OSError as error:
            found_hidden, found_shown = self._fs.get_file_info([self.hidden(name), shown])
            if found_hidden.type != _NONE:
                raise
            if found_shown.type == _NONE:
                self._refuse_unknown(name, error)
                return
        self._renamed.extend(_folders_of([name]))  # an earlier attempt may have ended before it waited for its name

    def _refuse_unknown(self, name: str, error: OSError) -> None:
        """A file is under neither name: raise, unless it is sure that it was published, and taken away since."""
        if not self.mark:
            raise CheckpointError(
                f"{self.path}/{name} was prepared for a checkpoint of an earlier version and is gone: nobody can tell"
                " whether it was published and moved on. Bring it back, or start over with another"
                " checkpointLocation"
            ) from error
        self._require_whole(name, error)

    def refuse_lost(self, names: Sequence[str], published: Container[str]) -> None:
        """Raise OSError where the folder is away, or a prepared file is gone that was not published."""
        paths = [f"{self.path}/{self.mark}", *map(self.hidden, names)]
        mark, *found = self._fs.get_file_info(paths)
        if mark.type == _NONE:
            raise self._away()
        gone = [name for name, info in zip(names, found, strict=True) if info.type == _NONE]
        shown = self._fs.get_file_info([f"{self.path}/{name}" for name in gone]) if gone else []
        for name, info in zip(gone, shown, strict=True):
            if info.type == _NONE and name not in published:
                raise FileNotFoundError(
                    errno.ENOENT, "a prepared file is gone, and was not published", self.hidden(name)
                )

    def sync_files(self, names: Sequence[str]) -> None:
        """Wait until hidden files are on the disk, where they are not published, and the names in the folder."""
        if self._disk.is_needed:
            for name in names:
                self._sync_hidden(name)
        self._sync_within(names)
        self._disk.sync_folder(self.path)

    def _sync_hidden(self, name: str) -> None:
        """Wait for a file that is not published; one that is was waited for before."""
        try:
            self._disk.sync_file(self.hidden(name))
        except FileNotFoundError:
            hidden = self.hidden(name).removeprefix(f"{self.path}/")
            if hidden in self.names(recursive="/" in name):  # the error was the file system's, not the file's
                raise

    def _require_whole(self, name: str, error: OSError) -> None:
        """A file was found under neither name: the folder's list, with the mark in it, must say so too."""
        if self._either(name) & self.names(recursive="/" in name):
            raise error

    def names(self, *, recursive: bool = False) -> set[str]:
        """All names in it, and within it; raises OSError where its mark is not among them: the folder is away."""
        found = self._fs.get_file_info(pafs.FileSelector(self.path, recursive=recursive))
        start = self.path.rstrip("/") + "/"
        names = {info.path.removeprefix(start) if recursive else info.base_name for info in found}
        if self.mark not in names:
            raise self._away()
        return names

    @staticmethod
    def _either(name: str) -> set[str]:
        """The names, shown and hidden, that a file has within the folder."""
        within, slash, file = name.rpartition("/")
        return {name, f"{within}{slash}.{file}"}

    def require(self) -> None:
        """Raise OSError where the folder is away."""
        if self._fs.get_file_info(f"{self.path}/{self.mark}").type == _NONE:
            raise self._away()

    def _away(self) -> OSError:
        text = f"{self.mark}, which the query put there, is missing: is the folder's file system away?"
        return FileNotFoundError(errno.ENOENT, text, self.path)


def _folders_of(names: Sequence[str]) -> set[str]:
    """The folders that these files lie in, and those in which these lie."""
    found: set[str] = set()
    for name in names:
        parts = name.split("/")[:-1]
        found.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return found
