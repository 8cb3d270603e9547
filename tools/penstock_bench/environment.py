# SPDX-License-Identifier: Apache-2.0
"""Looks at environment processes from outside, through /proc: which there are, and how much memory they take."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")
_LOOK_SECONDS = 0.02


def environment_pids(application: str) -> list[int]:
    """The environment processes of a Spark application's id."""
    found = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"penstock.environment" in command and any(part.startswith(application.encode()) for part in command):
            found.append(int(folder.name))
    return found


def parents() -> dict[int, int]:
    """The parent of each process of this host."""
    found = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            found[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants(pid: int, above: Mapping[int, int]) -> set[int]:
    """The processes that a process has started, and those that these have; `above` is what `parents` gave."""
    found = {pid}
    while fresh := {child for child, parent in above.items() if parent in found} - found:
        found |= fresh
    return found - {pid}


def private_bytes(pid: int) -> int:
    """The resident memory of a process without what it shares with tasks; 0 where it is gone."""
    return _resident(pid, ("RssAnon", "RssFile"))


def own_bytes(pid: int) -> int:
    """The resident memory of a process that no file stands behind; 0 where it is gone."""
    return _resident(pid, ("RssAnon",))


def _resident(pid: int, kinds: tuple[str, ...]) -> int:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return sum(int(sizes.get(kind, "0").split()[0]) for kind in kinds) << 10


class PeakMemory:
    """The largest `private_bytes` of an application's environment while a `with` block runs, looked at often."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-bench-memory", daemon=True)
        self.bytes = 0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        pids = environment_pids(self._application)
        while not self._stop.wait(_LOOK_SECONDS):
            pids = pids or environment_pids(self._application)
            self.bytes = max([self.bytes, *(private_bytes(pid) for pid in pids)])
