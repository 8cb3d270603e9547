# SPDX-License-Identifier: Apache-2.0
"""The folders of one service: whose each is, by an id that all of them carry and the service's index has.

Rules: the id is written once, and is on the disk before the folder is used. A service removes what its index names in
a folder with its id, and nothing else: that a file is not in an index gives no process leave, for the index may be
another one's, an old copy, or a new one in the place of a disk that is not mounted. A folder without an id, or with
another one, is refused by name, and left as it is; the service goes on with the others, so no disk stops it. An id is
given to a folder of a service that has begun by an operator's command alone (`--adopt`).

A folder, lock or index that belongs to another user, or that others can write to, is refused: they could put there
what they like. Links are not followed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from penstock.errors import SettingError
from penstock.machine.durable import sync_folder

log = logging.getLogger("penstock.folders")

ID_NAME: Final = "penstock-id"
_LOCK: Final = "lock"
_OTHERS_WRITE: Final = 0o022
_OTHERS: Final = 0o077
_ID_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class FolderKind:
    """One kind of service: its name, that of its index, and the look of what it has made."""

    service: str
    index: str
    has_rows: Callable[[Path], bool]
    """True for a folder with files as such a service makes them."""
    if_lost: str
    """Advice for one whose index is lost."""


@dataclass(frozen=True, slots=True)
class FoundFolder:
    """A folder as it was found: its id, if it has one, whether an index is there, and anything that it keeps."""

    path: Path
    id: str = ""
    has_index: bool = False
    has_rows: bool = False


@dataclass(frozen=True, slots=True)
class SortedFolders:
    """The folders of an index, those of them that are to get its id now, and others, each with the reason."""

    ours: tuple[Path, ...]
    new: tuple[Path, ...]
    refused: dict[Path, str] = field(default_factory=dict)
    hides_another: bool = False
    """True if one carries the id of another index: what that one names, this one can't know."""


def home_of(kind: FolderKind, found: Sequence[FoundFolder]) -> FoundFolder:
    """The folder that has the index, or is to get it: the first, if none was ever there. SettingError else. Pure."""
    homes = [each for each in found if each.has_index]
    if len(homes) > 1:
        raise SettingError(
            f"{' and '.join(str(each.path) for each in homes)} have an index each, so they are two services': give"
            " each its own folders (--dir)"
        )
    if homes:
        return homes[0]
    first = found[0]
    if first.id or first.has_rows:
        raise SettingError(
            f"{first.path} is a folder of a {kind.service} whose index, {kind.index}, lies in none of the folders:"
            f" mount or name the one that has it (--dir), or put it back{kind.if_lost}. Nothing was removed"
        )
    return first


def lost_home_of(kind: FolderKind, found: Sequence[FoundFolder]) -> FoundFolder:
    """The folder in which a lost index is to be made again; SettingError where none is lost. Pure."""
    there = [each.path for each in found if each.has_index]
    marked = [each for each in found if each.id]
    if there or not marked:
        why = f"{kind.index} is there, in {there[0]}" if there else "none of the folders carries an id"
        raise SettingError(f"no index is rebuilt: {why}")
    return marked[0]


def sort_folders(
    kind: FolderKind, found: Sequence[FoundFolder], home: Path, index: str, *, is_fresh: bool
) -> SortedFolders:
    """Sort folders by whose they are: those of the index with this id; a fresh one has blank folders too. Pure.

    SettingError where the folder of the index is not its own.
    """
    ours, new, refused = [], [], {}
    for each in found:
        if each.id and each.id == index:
            ours.append(each.path)
        elif each.id:
            refused[each.path] = f"it carries the id {each.id}, and the index in {home} has {index}"
        elif is_fresh and not each.has_rows:
            ours.append(each.path)
            new.append(each.path)
        else:
            refused[each.path] = (
                f"it carries no id: its disk is not mounted, or it is new, or of a {kind.service} that wrote none;"
                " where it is to be this one's, run the same command once with --adopt"
            )
    if home in refused:
        raise SettingError(f"{home} is refused: {refused[home]}. Nothing was removed")
    return SortedFolders(tuple(ours), tuple(new), refused, any(each.id not in ("", index) for each in found))


class OwnedIndex(Protocol):
    """An index of one service."""

    @property
    def id(self) -> str:
        """The index's id."""

    @property
    def is_fresh(self) -> bool:
        """True until it was used for the first time."""

    def close(self) -> None:
        """Close it."""


I = TypeVar("I", bound=OwnedIndex)  # noqa: E741 - an index


@dataclass(frozen=True, slots=True)
class OpenFolders(Generic[I]):
    """An index, its folders, and the locks of all that were given."""

    index: I
    home: Path
    sorted: SortedFolders
    locks: tuple[int, ...]

    def let_go(self) -> None:
        """Give the locks back."""
        for lock in self.locks:
            os.close(lock)


def open_folders(
    kind: FolderKind,
    paths: Sequence[Path],
    mode: int,
    open_index: Callable[[Path], I],
    *,
    adopts: bool = False,
    rebuilds: bool = False,
) -> OpenFolders[I]:
    """Take these folders, and sort them; `open_index` opens the index in its folder, or makes it there.

    With `adopts` those without an id become the index's, with `rebuilds` the index is made in the first folder that
    has an id: SettingError where there is none, or, then, where there is one.
    """
    locks: list[int] = []
    try:
        locks.extend(take_folder(kind, path, mode) for path in paths)
        found = [
            FoundFolder(each, read_id(each), (each / kind.index).is_file(), kind.has_rows(each)) for each in paths
        ]
        home = lost_home_of(kind, found) if rebuilds else home_of(kind, found)
        if adopts and not home.has_index:
            raise SettingError(f"none of these folders has {kind.index}: there is no {kind.service} to adopt them")
        index = open_index(home.path)
        try:
            if adopts:
                for each in found:
                    if not each.id:
                        write_id(each.path, index.id)
                found = [replace(each, id=each.id or index.id) for each in found]
            result = sort_folders(kind, found, home.path, index.id, is_fresh=index.is_fresh)
            for path in result.new:
                write_id(path, index.id)
        except BaseException:
            index.close()
            raise
    except BaseException:
        for lock in locks:
            os.close(lock)
        raise
    for path, why in result.refused.items():
        log.error("%s is refused: %s. It is left as it is", path, why)
    return OpenFolders(index, home.path, result, tuple(locks))


def take_folder(kind: FolderKind, path: Path, mode: int) -> int:
    """Make a folder if it is not there, and take its lock; a descriptor of it. SettingError where that can't be."""
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
        check_owned(path)
        check_owned(path / kind.index, _OTHERS)
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SettingError(f"the {kind.service} can't use {path}: {error}. See --dir") from error
    try:
        check_owned(path / _LOCK)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(descriptor, 20, 0).decode(errors="replace")
        os.close(descriptor)
        raise SettingError(
            f"another {kind.service} uses {path} (process {other}): stop it, or give this one another --dir"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def check_owned(path: Path, others: int = _OTHERS_WRITE) -> None:
    """Raise SettingError for what belongs to another user, is a link, or gives others one of these rights."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    problem = ""
    if stat.S_ISLNK(found.st_mode):
        problem = "it is a link: name what it points to"
    elif found.st_uid != os.geteuid():
        problem = f"it belongs to user {found.st_uid}, and this service runs as user {os.geteuid()}: chown it"
    elif stat.S_IMODE(found.st_mode) & others:
        problem = f"others may use it (mode {stat.S_IMODE(found.st_mode):o}): chmod go-{_rights(others)} it"
    if problem:
        raise SettingError(f"{path} is refused: {problem}, or give another one")


def read_id(folder: Path) -> str:
    """The id of a folder, or nothing."""
    path = folder / ID_NAME
    check_owned(path)
    try:
        return path.read_bytes()[:_ID_BYTES].decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SettingError(f"{path} can't be read: {error}. See --dir") from error


def write_id(folder: Path, text: str) -> None:
    """Have a folder carry an id, on the disk; SettingError where it has one, or can't be written."""
    path, made = folder / ID_NAME, folder / f".{ID_NAME}"
    try:
        if path.exists():
            raise FileExistsError(f"it carries the id {read_id(folder)}")
        made.unlink(missing_ok=True)
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, f"{text}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        made.rename(path)
        sync_folder(folder)
    except OSError as error:
        raise SettingError(f"{folder} can't be made a folder of this service: {error}. See --dir") from error


def _rights(others: int) -> str:
    return "rwx" if others == _OTHERS else "w"
