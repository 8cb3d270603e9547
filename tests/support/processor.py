# SPDX-License-Identifier: Apache-2.0
"""Processor seconds of a run of tests: of this process and of all that it started.

Wall time says little on a machine where others work too; these seconds say what a test costs anywhere. A process that
has ended counts with its parent, which was told of its time, or with what was last seen of it.
"""

from __future__ import annotations

import os
import threading

from holdings import content, descendants

_LOOK_SECONDS = 1.0
_TICK = os.sysconf("SC_CLK_TCK")


class Processor:
    """The time that this process and its descendants have taken; it only grows."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, int]] = {}
        self._gone = 0.0
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Look each second from now on: a process may begin and end between two looks, and nobody be told of it."""
        threading.Thread(target=self._watch, name="processor-seconds", daemon=True).start()

    def seconds(self) -> float:
        """Seconds, user and system, up to now."""
        with self._lock:
            return self._seconds()

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_SECONDS):
            self.seconds()

    def _seconds(self) -> float:
        own = os.times()
        seen = {pid: taken for pid in descendants() if (taken := _taken(pid)) is not None}
        for pid in self._seen.keys() - seen.keys():
            seconds, parent = self._seen[pid]
            if parent != os.getpid() and parent not in self._seen:  # nobody we know was told of its time
                self._gone += seconds
        self._seen = seen
        living = sum(seconds for seconds, _ in seen.values())
        return own.user + own.system + own.children_user + own.children_system + living + self._gone


def _taken(pid: int) -> tuple[float, int] | None:
    """Seconds of a process and of its ended children, and its parent."""
    try:
        fields = content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    return sum(int(field) for field in fields[11:15]) / _TICK, int(fields[1])
