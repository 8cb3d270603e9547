# SPDX-License-Identifier: Apache-2.0
"""The file by which a running session is found by its user's other processes, as Jupyter's kernels have one.

It lies in a folder of the session among those of environments, mode 0700 and ours, and has the address of the
JobMaster and the operators' key. The folder's lock says that the session lives; a dead one's is swept as any other.
A copy of the file leads to the session from elsewhere, so it is as secret as the session's queries are dear.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock.errors import SettingError
from penstock.link.rendezvous import Rendezvous, base_folder, rendezvous

_NAME = "session"


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A running session: its application's id and name, its driver's process, its JobMaster's address, the key."""

    application: str
    name: str
    pid: int
    master: str
    key: str = field(repr=False)


class SessionFile:
    """The file of this process's session, until it is closed."""

    def __init__(self, facts: SessionFacts, directory: str = "") -> None:
        """Raises SettingError or OSError where the folder can't be had."""
        self._place = rendezvous(facts.application, "session", directory)
        self._place.make()
        self._lock = self._place.take_lock()
        if self._lock is None:
            raise SettingError(f"{self._place.folder} is another process's")
        path = self._place.folder / _NAME
        made = path.with_name(f".{_NAME}")
        try:
            with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
                json.dump(asdict(facts), file)
            made.rename(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The session ends; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            self._place.remove()
            os.close(lock)


def session_files(directory: str = "") -> list[Path]:
    """Those of this user's sessions on this host that live, the oldest first."""
    found = [folder / _NAME for folder in _folders(base_folder(directory)) if (folder / _NAME).exists()]
    return sorted((path for path in found if _lives(path)), key=lambda path: path.stat().st_mtime)


def read_session(path: Path) -> SessionFacts:
    """The facts in a file, or in a copy of one; raises SettingError."""
    try:
        with path.open() as file:
            seen = os.fstat(file.fileno())
            facts = SessionFacts(**json.load(file))
    except PermissionError as error:
        raise SettingError(
            f"{path} can't be read: it is another user's session. That user leads its queries, or whoever was given a"
            " copy of the file"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{path} is no file of a session: {error}") from error
    if seen.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingError(f"{path} has a session's key and is not its owner's alone: chmod 600 it")
    return facts


def _folders(base: Path) -> list[Path]:
    try:
        return [entry for entry in base.iterdir() if entry.is_dir() and not entry.is_symlink()]
    except OSError:
        return []


def _lives(path: Path) -> bool:
    lock = Rendezvous(path.parent).take_lock()
    if lock is None:
        return True
    os.close(lock)
    return False
