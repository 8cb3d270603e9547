# SPDX-License-Identifier: Apache-2.0
"""Removes what is not needed at a checkpoint location: checkpoints, logs, and what earlier owners have left.

Rules
- Before this owner has committed nothing of an earlier owner goes, however useless it looks: what was found may have
  been found wrongly, and only a commit proves that a query goes on here.
- A checkpoint loses its metadata first, so that what is left of it never looks like one. That the metadata
  is not found is no proof: the location may be away, and come back while the parts are removed.
- A folder in which a file is needed is not removed as a whole, also where a list of it shows no such file.
- Tasks may still write for a checkpoint that was given up. So each commit looks for what they have left.
- The caller has asked whether this driver still owns the location.
"""

from __future__ import annotations

import contextlib
import errno

from pyarrow import fs

from penstock.checkpoint.errors import AwayError
from penstock.checkpoint.found import Found
from penstock.checkpoint.kept_files import KeptFiles
from penstock.checkpoint.log_files import is_before, log_folder, owner_of
from penstock.checkpoint.metadata import CheckpointMetadata
from penstock.checkpoint.ownership import Ownership
from penstock.checkpoint.stamps import Stamp

METADATA = "_metadata"
_TRIES = 5


class Removal:
    """That of one location, by one owner."""

    def __init__(self, filesystem: fs.FileSystem, root: str, ownership: Ownership) -> None:
        self._fs = filesystem
        self._root = root
        self._ownership = ownership
        self._files = KeptFiles()
        self._has_committed = False
        self._log_folders: set[str] = set()
        """Those in which files may lie."""

    def begin(self, found: Found) -> None:
        """The location was claimed; these checkpoints are kept."""
        for each in found.kept:
            self._files.keep(each.stamp, each.metadata)

    def committed(self, stamp: Stamp, metadata: CheckpointMetadata) -> None:
        """A checkpoint of this owner is complete."""
        self._has_committed = True
        self._files.keep(stamp, metadata)
        if metadata.is_logged:
            self._log_folders.add(self._own_logs)

    def discard(self, stamp: Stamp) -> None:
        """Remove a checkpoint, complete or not, with those files of others that only it needed."""
        if stamp.owner != self._ownership.mine and not self._has_committed:
            return
        for folder in self._files.drop(stamp):
            if folder == stamp or not self._is_complete(folder):
                self._clear(folder)
        self._clear_logs(self._files.newest)

    def discard_logs(self, before: int) -> None:
        """Remove files of this owner's logs that were begun before this number, and that no checkpoint needs."""
        self._log_folders.add(self._own_logs)
        self._clear_logs(before)

    def sweep(self, kept: set[Stamp]) -> list[Stamp]:
        """Remove all but these checkpoints and what is under way; returns what was removed."""
        if not self._has_committed:
            return []
        own, names = self._ownership.mine, self._folders()
        stamps = [stamp for stamp in map(Stamp.of, names) if stamp is not None]
        newest = max((stamp.number for stamp in kept), default=0)
        removed = [
            stamp
            for stamp in sorted(stamps)
            if stamp not in kept and (stamp.owner < own or (stamp.owner == own and stamp.number < newest))
        ]
        self._files.drop_all_but(kept)
        for stamp in removed:
            self._clear(stamp)
        self._log_folders |= {name for name in names if (found := owner_of(name)) is not None and found < own}
        self._clear_logs(self._files.newest)
        self._ownership.forget({stamp.owner for stamp in kept})
        return removed

    def has_logs(self) -> bool:
        """True if there are logs."""
        folders = {*self._log_folders, self._own_logs}
        found = self._fs.get_file_info([f"{self._root}/{folder}" for folder in folders])
        self._log_folders = {info.base_name for info in found if info.type == fs.FileType.Directory}
        return bool(self._log_folders)

    def end(self) -> None:
        """This owner's logs are not written any more: remove what is not needed of them."""
        self._clear_logs(None)

    @property
    def _own_logs(self) -> str:
        return log_folder(str(self._ownership.mine))

    def _clear_logs(self, limit: int | None) -> None:
        """Remove files of logs that are not needed; of this owner those begun before `limit`, None: all of them."""
        own = self._own_logs
        for folder in sorted(self._log_folders):
            before = limit if folder == own else None
            needed, left = self._files.needed(folder), 0
            selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
            for info in self._fs.get_file_info(selector):
                if info.base_name in needed or (before is not None and not is_before(info.base_name, before)):
                    left += 1
                    continue
                with contextlib.suppress(FileNotFoundError):
                    self._fs.delete_file(info.path)
            if not left and not needed and before is None:
                self._log_folders.discard(folder)
                with contextlib.suppress(FileNotFoundError):
                    self._fs.delete_dir(f"{self._root}/{folder}")

    def _clear(self, folder: Stamp) -> None:
        """Remove what is not needed of a folder."""
        path, needed = f"{self._root}/{folder}", self._files.needed(str(folder))
        with contextlib.suppress(FileNotFoundError):
            self._lose_metadata(path)
            if not needed:
                self._delete(path)
                return
            for info in self._fs.get_file_info(fs.FileSelector(path)):
                if info.base_name not in needed:
                    self._fs.delete_file(info.path)

    def _lose_metadata(self, path: str) -> None:
        """See the metadata of a folder gone: the location may have been away as we removed it.

        A list of the folder without it is certain, because it is of one moment. Raises FileNotFoundError where there
        is no folder, AwayError where the metadata is there and can't be removed.
        """
        for _ in range(_TRIES):
            try:
                self._fs.delete_file(f"{path}/{METADATA}")
            except FileNotFoundError:
                if METADATA not in {info.base_name for info in self._fs.get_file_info(fs.FileSelector(path))}:
                    return
            else:
                return
        raise AwayError(f"{path}/{METADATA} is there, and can't be removed: is the location away?")

    def _delete(self, path: str) -> None:
        """Remove a folder; a task that was late to hear that it is not needed may write into it meanwhile."""
        for _ in range(_TRIES - 1):
            try:
                self._fs.delete_dir(path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
            else:
                return
        self._fs.delete_dir(path)

    def _is_complete(self, stamp: Stamp) -> bool:
        return bool(self._fs.get_file_info(f"{self._root}/{stamp}/{METADATA}").type == fs.FileType.File)

    def _folders(self) -> list[str]:
        found = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return [info.base_name for info in found if info.type == fs.FileType.Directory]
