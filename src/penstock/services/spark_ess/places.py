# SPDX-License-Identifier: Apache-2.0
"""The place of a partition: names of blocks, folders on its host, and the words by which a reader finds it.

    <folder>/<two hex digits>/shuffle_1347638347_<number>_0.data, and .index beside or in another folder

Rules: names and folders are a function of each other as Spark's are, or the service would not find them. The number
is drawn at random for each attempt, because the service keeps the index of a path for as long as it lives. Files lie
in a folder of ours beside those of the executors, `<root>/<application>/penstock`: no block of Spark's is there, and
no end of an executor reaches it. The words of a descriptor are checked before they are used, and
never become a path.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ProtocolError, SettingError, StorageError
from penstock.services.spark_ess.messages import SUB_FOLDERS, Block

SHUFFLE = int.from_bytes(b"PSTK", "big")
"""The number of our only shuffle. Spark counts its own from 0."""
MANIFEST = 0, 1
"""The reduce partition that is the manifest."""
DATA_FROM = 2
"""Number 1 lies between the manifest and the data, has no meaning, and is never asked for."""

_LOCATION = re.compile(r"(penstock-[\w.:-]{1,200})/(\d{1,19})")
_MARK = 0, 1
_FINISHED, _FAILED = 1, 2
_FOLDER_MODE = 0o770
FILE_MODE = 0o640
"""Files, and folders with their group's right to write, are as Spark's are: a service of another user, in the same
group, reads and removes them."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a partition at its service: the executor it is registered under, and its number."""

    executor: str
    number: int

    @classmethod
    def new(cls, environment: str) -> Place:
        """A place for an attempt beside this environment; its number and the two after it are its own."""
        return cls(f"penstock-{environment}", secrets.randbits(60) << 2)

    @classmethod
    def from_text(cls, text: str) -> Place:
        """Inverse of `str`; ProtocolError for another text."""
        found = _LOCATION.fullmatch(text)
        if found is None:
            raise ProtocolError(f"{text!r:.200} is no place of a shuffle service")
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.executor}/{self.number}"

    @property
    def manifest(self) -> Block:
        """The block that says what lies where."""
        return Block(self.number, *MANIFEST)

    @property
    def finished(self) -> Block:
        """The mark of a partition that was finished, whatever became of it."""
        return Block(self.number + _FINISHED, *_MARK)

    @property
    def failed(self) -> Block:
        """The mark of a partition that has failed: it is the cause."""
        return Block(self.number + _FAILED, *_MARK)

    @property
    def files(self) -> list[str]:
        """The names of the partition's files."""
        return list(names_of(self.number))

    @property
    def marks(self) -> list[str]:
        """The names of the files of its marks."""
        return [*names_of(self.number + _FINISHED), *names_of(self.number + _FAILED)]


def names_of(number: int) -> tuple[str, str]:
    """The names of a block's data and of its index."""
    return f"shuffle_{SHUFFLE}_{number}_0.data", f"shuffle_{SHUFFLE}_{number}_0.index"


def path_of(folders: Sequence[str], name: str) -> Path:
    """The path at which the service looks for a file."""
    folder, rest = folder_of(folders, name), _hash(name) // len(folders)
    return Path(folder, f"{rest % SUB_FOLDERS:02x}", name)


def folder_of(folders: Sequence[str], name: str) -> str:
    """The registered folder that a file is in."""
    return folders[_hash(name) % len(folders)]


def folders_for(application: str, directories: str) -> tuple[str, ...]:
    """The folders of this host in which files of an application may lie, by the settings or beside Spark's own."""
    told = directories or os.environ.get("SPARK_LOCAL_DIRS", "")
    roots = [Path(part.strip()) for part in told.split(",") if part.strip()]
    if not roots:
        raise SettingError(
            "there is no folder that this host's shuffle service reads: SPARK_LOCAL_DIRS is not set, so this is no"
            " task of Spark's; set spark.penstock.ess.directories"
        )
    beside = [root.parent if root.name.startswith("blockmgr-") else root for root in roots]
    return tuple(str(root.resolve() / application / "penstock") for root in beside)


def make_folders(folders: Sequence[str]) -> None:
    """Make those that are missing; StorageError where one can't be made, or belongs to another user."""
    for folder in map(Path, folders):
        try:
            for each in (folder.parent, folder):
                each.mkdir(exist_ok=True)
                found = each.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                    raise StorageError(f"{each} belongs to somebody else: remove it, or set another spark.local.dir")
                wanted = found.st_mode & stat.S_ISGID | _FOLDER_MODE
                if stat.S_IMODE(found.st_mode) != wanted:
                    each.chmod(wanted)
        except OSError as error:
            raise StorageError(f"no folder for the shuffle service can be made at {folder}: {error}") from error


def make_parent(path: Path) -> None:
    """Make the folder of a file that is to be there, as `make_folders` makes those above it."""
    parent = path.parent
    if not parent.is_dir():
        parent.mkdir(exist_ok=True)
        parent.chmod(parent.stat().st_mode & stat.S_ISGID | _FOLDER_MODE)


def _hash(name: str) -> int:
    """Java's hash of a text, less its sign."""
    found = 0
    for byte in name.encode():
        found = (31 * found + byte) & 0xFFFFFFFF
    found = found - (1 << 32) if found >= 1 << 31 else found
    return 0 if found == -(1 << 31) else abs(found)
