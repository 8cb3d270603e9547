# SPDX-License-Identifier: Apache-2.0
"""The pulse of an environment process: a moment in a file, which it writes again and again as long as its loop runs.

The lock says that the process is there; a process that was stopped, or waits for a dead disk, holds it too. One whose
pulse stands for the lease's time is lost for its JobMaster. So a task that finds it so kills it, to be sure that it
never goes on, and starts another one in its place. The clock is the machine's, the same for all processes of a host.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from pathlib import Path

from penstock.link.leases import WakingClock
from penstock.link.peers import peer_of

BEAT_SECONDS = 0.2
LOOK_SECONDS = 1.0
"""Seconds between two looks of a task that waits."""
_MOMENT = struct.Struct("<d")
_DEATH_SECONDS = 2.0
"""A process that is dead for us but waits for a disk stays longer than this."""


class Pulse:
    """The writer's side."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.beat()

    def beat(self) -> None:
        """Now."""
        os.pwrite(self._fd, _MOMENT.pack(time.monotonic()), 0)

    def close(self) -> None:
        """Beat no more."""
        os.close(self._fd)


class PulseWatch:
    """The reader's side. An environment without a pulse, as in some tests, is never found to stand still."""

    def __init__(self, path: Path, lease: float) -> None:
        self.lease = lease
        self._path = path
        self._clock = WakingClock(most=2 * LOOK_SECONDS)
        self._seen = self._read()
        self._since = self._clock.now()

    @property
    def age(self) -> float:
        """Seconds since the last beat; 0 where there is none."""
        seen = self._read()
        return 0.0 if seen is None else time.monotonic() - seen

    def has_stopped(self) -> bool:
        """Tell whether it has stood for the lease's time in which we looked at it; look every LOOK_SECONDS."""
        seen, now = self._read(), self._clock.now()
        if seen is None or seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > self.lease

    def _read(self) -> float | None:
        try:
            moment: tuple[float] = _MOMENT.unpack(self._path.read_bytes())
        except (OSError, struct.error):
            return None
        return moment[0]


def end_peer(connection: socket.socket) -> bool:
    """Kill the process that listens at the other end; whether it is dead, or is not known and was left alone."""
    peer = peer_of(connection)
    if peer is None or peer.pid in (0, os.getpid()) or not peer.is_ours:
        return True
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(peer.pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            return bool(select.select([process], [], [], _DEATH_SECONDS)[0])
        finally:
            os.close(process)
    return True
