# SPDX-License-Identifier: Apache-2.0
"""The meeting place of a host's tasks and their environment process.

One folder per application (and scope) under `<tmp>/penstock-<uid>/`, mode 0700 and ours, with a name short
enough for a Unix socket's path. It holds the socket, the log, the result files and the lock file. *Holding the
lock is being alive*: the starter takes it, the environment inherits it and keeps it to its end, and a process
that can take it later knows that the environment is gone and the folder may be swept.

Large files may lie elsewhere: a folder of the application in each of several directories. The rendezvous folder
notes each of them *before* it is made, and a sweep of the rendezvous folder removes them first. A noted folder
must have the name that this rendezvous gives it, be ours and be no link; whatever else the note says is left alone.

The lock says that a process is there, its pulse that it runs (`pulse`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import SettingError

_SOCKET_PATH_LIMIT = 100  # sun_path holds 108 bytes on Linux, 104 elsewhere


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The folder of one environment process."""

    folder: Path

    @property
    def socket(self) -> Path:
        """The environment's Unix socket."""
        return self.folder / "s"

    @property
    def lock(self) -> Path:
        """The lock file that the living hold."""
        return self.folder / "lock"

    @property
    def log(self) -> Path:
        """The file of the environment process's standard error."""
        return self.folder / "log"

    @property
    def pulse(self) -> Path:
        """The file by which the environment says that it runs."""
        return self.folder / "pulse"

    @property
    def results(self) -> Path:
        """The folder of result files, where no directories are set."""
        return self.folder / "results"

    @property
    def notes(self) -> Path:
        """The note of the folders this application has in other directories, one path a line."""
        return self.folder / "directories"

    def make(self) -> None:
        """Make the folder and check that it is ours alone."""
        _own_folder(self.folder.parent)
        _own_folder(self.folder)

    def take_lock(self) -> int | None:
        """The locked file descriptor, inheritable, or None while another process holds it.

        A folder that was swept between open and lock is noticed by its inode and tried again.
        """
        while True:
            try:
                fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                self.make()
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            if _is_same_file(fd, self.lock):
                return fd
            os.close(fd)

    def is_locked_by(self, fd: int) -> bool:
        """Tell whether this descriptor's lock is that of the folder, which may be another environment's by now."""
        return _is_same_file(fd, self.lock)

    def set_aside(self, lock: os.stat_result) -> None:
        """Leave the folder to a process that holds this lock and can't be ended, so that another one gets its name.

        Of several that try, the first does it. Files in other directories are noted for the new environment, which
        removes them at its end.
        """
        base = os.open(self.folder.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(base, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(lock, self.lock.stat()):
                    aside = self.folder.with_name(f"{self.folder.name}.{secrets.token_hex(4)}")
                    self.folder.rename(aside)
                    self.make()
                    shutil.copyfile(aside / self.notes.name, self.notes)
        finally:
            os.close(base)

    def make_folder_in(self, directory: Path) -> Path:
        """This application's folder in another directory, noted and made; raises SettingError or OSError."""
        folder = directory.absolute() / self._name_elsewhere
        with self.notes.open("a") as notes:
            notes.write(f"{folder}\n")
        _own_folder(folder, "spark.penstock.blocking.directories")
        return folder

    @property
    def _name_elsewhere(self) -> str:
        digest = hashlib.sha256(os.fsencode(self.folder.absolute())).hexdigest()[:16]
        return f"penstock-{os.getuid()}-{digest}"

    def _folders_elsewhere(self) -> list[Path]:
        try:
            lines = self.notes.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [folder for line in dict.fromkeys(lines) if self._is_our_folder(folder := Path(line))]

    def _is_our_folder(self, folder: Path) -> bool:
        if folder.name != self._name_elsewhere:
            return False
        try:
            status = folder.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()

    def clear(self) -> None:
        """Remove what a dead environment left, in other directories too; call with the lock held."""
        for folder in self._folders_elsewhere():
            shutil.rmtree(folder, ignore_errors=True)
        for entry in list(self.folder.iterdir()):
            if entry == self.lock:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the whole folder; call with the lock held. The lock file goes last."""
        self.clear()
        self.lock.unlink(missing_ok=True)
        try:
            self.folder.rmdir()
        except OSError:
            return  # a new starter has made a lock file already: the folder is its own now


def base_folder(directory: str = "") -> Path:
    """The folder of all rendezvous folders of this user: `directory`, or the system's temporary folder."""
    return Path(directory or tempfile.gettempdir()) / f"penstock-{os.getuid()}"


def rendezvous(application: str, scope_key: str = "", directory: str = "") -> Rendezvous:
    """The meeting place of this application (and executor); raises SettingError where the path is too long."""
    digest = hashlib.sha256(f"{application}\0{scope_key}".encode()).hexdigest()[:16]
    place = Rendezvous(base_folder(directory) / digest)
    if len(os.fsencode(place.socket)) > _SOCKET_PATH_LIMIT:
        raise SettingError(
            f"spark.penstock.environment.directory={directory!r} makes the socket's path too long for a Unix"
            f" socket ({place.socket}): choose a shorter folder"
        )
    return place


def sweep(directory: str = "", keep: Path | None = None) -> list[Path]:
    """Remove the folders of dead environments of this user, and only those; returns what was removed.

    A starter that was killed between making its folder and its lock leaves an empty one, which goes too: a living
    one makes its folder again.
    """
    base = base_folder(directory)
    removed = _sweep_empty(base, keep)
    for place in _places(base):
        if place.folder == keep:
            continue
        fd = place.take_lock()
        if fd is None:
            continue
        try:
            place.remove()
            removed.append(place.folder)
        finally:
            os.close(fd)
    return removed


def _places(base: Path) -> Iterator[Rendezvous]:
    for entry in _folders(base):
        if (entry / "lock").exists():
            yield Rendezvous(entry)


def _sweep_empty(base: Path, keep: Path | None) -> list[Path]:
    """Remove the folders without anything in them; none while one is set aside, which leaves its name empty."""
    removed: list[Path] = []
    try:
        descriptor = os.open(base, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return removed
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder in _folders(base):
                if folder != keep:
                    with contextlib.suppress(OSError):  # there is something in it, or it has just gone
                        folder.rmdir()
                        removed.append(folder)
    finally:
        os.close(descriptor)
    return removed


def _folders(base: Path) -> list[Path]:
    try:
        entries = sorted(base.iterdir())
    except FileNotFoundError:
        return []
    return [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]


def _own_folder(folder: Path, setting: str = "spark.penstock.environment.directory") -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SettingError(
            f"{folder} must be a folder of this user alone (mode 0700): remove it or set {setting} to another folder"
        )


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
