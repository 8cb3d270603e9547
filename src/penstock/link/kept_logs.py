# SPDX-License-Identifier: Apache-2.0
"""The output of users' functions, and the logs of environments, kept on their host when the application has ended.

One folder for each application under `<tmp>/penstock-logs-<uid>/` (or `spark.penstock.environment.directory`), mode
0700 and ours, so that no other user reads it. A file that is full is set aside under another name and begun anew: its
last part is kept, twice half of its size at most. Folders that are not written to any more are removed after a
week, or when there are fifty younger ones. A disk that can't be written costs lines, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections import deque
from pathlib import Path

from penstock.errors import SettingError

FILE_BYTES = 1 << 20
"""The most that is kept of one task, and of one environment."""
APPLICATION_BYTES = 64 << 20
"""The most that is kept of one application on one host; then its oldest files go."""
_MOST_FILES = 1_000
_KEPT_APPLICATIONS = 50
_KEPT_SECONDS = 7 * 86_400
_QUIET_SECONDS = 3_600
"""An application that has written within an hour may run."""
_TITLE = ".name"
ASIDE = ".1"
"""The end of the name of a file that was full."""


def logs_folder(directory: str = "") -> Path:
    """The folder of this user's applications."""
    return Path(directory or tempfile.gettempdir()) / f"penstock-logs-{os.getuid()}"


def application_folder(application: str, directory: str = "") -> Path:
    """The folder of one application; raises SettingError or OSError where it can't be ours alone."""
    folder = logs_folder(directory) / re.sub(r"[^\w.-]", "_", application).lstrip(".")
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = each.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise SettingError(f"{each} must be a folder of this user alone (mode 0700): remove it")
    return folder


class KeptFile:
    """The last part of what is written, made with the first line. Any thread; several processes may share a file.

    With a `descriptor` that one is the file: what is written to it directly, as by an interpreter that crashes, is
    kept too. `heading` is its first line.
    """

    def __init__(self, path: Path, limit: int = FILE_BYTES, heading: str = "", descriptor: int | None = None) -> None:
        self._path = path
        self._half = max(1, limit // 2)
        self._heading = heading
        self._fixed = descriptor
        self._file = descriptor
        self._is_broken = False

    def write(self, text: str) -> None:
        """Keep this text; never raises for a disk."""
        if self._is_broken:
            return
        try:
            self._write(text.encode("utf-8", "backslashreplace"))
        except OSError:
            self._is_broken = True

    def flush(self) -> None:
        """Nothing waits here."""

    @property
    def is_made(self) -> bool:
        """True if anything was kept."""
        return self._file is not None

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        self._is_broken = True
        if file is not None and self._fixed is None:
            os.close(file)

    def _write(self, data: bytes) -> None:
        data = data[-self._half :]
        file = self._file if self._file is not None else self._begin()
        if os.fstat(file).st_size + len(data) > self._half:
            self._path.replace(f"{self._path}{ASIDE}")
            file = self._begin()
        os.write(file, data)

    def _begin(self) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if self._fixed is not None:
            os.dup2(file, self._fixed)
            os.close(file)
            file = self._fixed
        elif self._file is not None:
            os.close(self._file)
        self._file = file
        if self._heading and not os.fstat(file).st_size:
            os.write(file, f"{self._heading}\n".encode("utf-8", "backslashreplace"))
        return file


def link_log(log: Path, application: str, directory: str = "", title: str = "") -> None:
    """Let an environment's log be a file that stays when its rendezvous folder goes; else it goes along.

    `title` is the name that its user gave the application, which is kept with it.
    """
    with contextlib.suppress(OSError, SettingError):
        folder = application_folder(application, directory)
        log.unlink(missing_ok=True)
        log.symlink_to(folder / f"environment-{log.parent.name}.log")
        if title:
            (folder / _TITLE).write_text(title)


def title_of(folder: Path) -> str:
    """The name that its user gave an application; empty where it is not known on this host."""
    with contextlib.suppress(OSError, ValueError):
        return (folder / _TITLE).read_text().strip()
    return ""


def make_room(folder: Path) -> None:
    """Remove the oldest files of an application that has too many bytes, or files."""
    files = sorted(_files(folder), key=lambda pair: pair[1].st_mtime, reverse=True)
    total = 0
    for place, (path, status) in enumerate(files):
        total += status.st_size
        if total > APPLICATION_BYTES or place >= _MOST_FILES:
            path.unlink(missing_ok=True)


def sweep_logs(directory: str = "", now: float | None = None) -> list[Path]:
    """Remove the folders of applications that are over for long, or are too many; gives those that went."""
    now = time.time() if now is None else now
    gone = []
    for place, (folder, written) in enumerate(applications(directory)):
        age = now - written
        if age > _KEPT_SECONDS or (place >= _KEPT_APPLICATIONS and age > _QUIET_SECONDS):
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(folder)
    return gone


def applications(directory: str = "") -> list[tuple[Path, float]]:
    """The folders of applications and when they were written to last, the newest first."""
    found = []
    with contextlib.suppress(OSError):
        for folder in logs_folder(directory).iterdir():
            with contextlib.suppress(OSError):
                if folder.is_dir() and not folder.is_symlink():
                    times = [status.st_mtime for _, status in _files(folder)]
                    found.append((folder, max(times, default=folder.stat().st_mtime)))
    return sorted(found, key=lambda pair: -pair[1])


def kept_files(folder: Path, job: str = "") -> list[Path]:
    """The files of an application, or those of one job: by its id, or by its name in the first line of its files."""
    with contextlib.suppress(OSError):
        return sorted(
            path for path in folder.iterdir() if not path.name.endswith((ASIDE, _TITLE)) and _is_of(path, job)
        )
    return []


def last_lines(path: Path, lines: int) -> str:
    """The last lines of a file, of which some may be in the part that was set aside."""
    kept: deque[str] = deque(maxlen=lines)
    for part in (Path(f"{path}{ASIDE}"), path):
        with contextlib.suppress(OSError), part.open(errors="replace") as file:
            kept.extend(file)
    if kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    return "".join(kept)


def _is_of(path: Path, job: str) -> bool:
    if not job or path.name.startswith(f"{job}-"):
        return True
    with contextlib.suppress(OSError), path.open(errors="replace") as file:
        return file.readline().startswith(f"# {job}: ")
    return False


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found.append((path, status))
    return found
