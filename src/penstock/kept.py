# SPDX-License-Identifier: Apache-2.0
"""`penstock logs`: what users' functions have printed on this host, and the logs of its environments."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from penstock.errors import SettingError
from penstock.link.kept_logs import applications, kept_files, last_lines, logs_folder, title_of


def show_logs(application: str, directory: str, job: str, lines: int) -> int:
    """Print the last lines of each file of an application, the newest if none is named.

    Raises SettingError where nothing is kept, or nothing under this name.
    """
    known = applications(directory)
    found = [folder for folder, _ in known if folder.name.startswith(application) or title_of(folder) == application]
    if not found:
        named = f" of an application that begins with {application!r}" if application else ""
        raise SettingError(f"{logs_folder(directory)} of this host has no logs{named}: {_names(known)}")
    folder = found[0]
    sys.stderr.write(f"{folder} (one of {len(known)} applications: penstock logs --list)\n")
    shown = kept_files(folder, job)
    if not shown:
        files = ", ".join(path.name for path in kept_files(folder))
        raise SettingError(f"{folder} has nothing of job {job!r}: it has {files}")
    for path in shown:
        sys.stdout.write(f"==> {path.name} <==\n{last_lines(path, lines)}")
    return 0


def list_logs(directory: str) -> int:
    """Print the applications that this host has logs of, the newest first."""
    for folder, written in applications(directory):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written))
        sys.stdout.write(f"{at}  {folder.name}  {title_of(folder)}".rstrip() + "\n")
    return 0


def _names(known: list[tuple[Path, float]]) -> str:
    return f"it has {', '.join(folder.name for folder, _ in known[:5])}" if known else "it is empty"
