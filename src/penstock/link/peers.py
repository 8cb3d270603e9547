# SPDX-License-Identifier: Apache-2.0
"""Whose process is at the other end of a Unix socket, as the kernel says."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """A process, and the user that runs it; `pid` is 0 for a process that this one can't see."""

    pid: int
    user: int

    @property
    def is_ours(self) -> bool:
        """True if it is of the user that runs this process."""
        return self.user == os.getuid()


def peer_of(connection: socket.socket) -> Peer | None:
    """The process at the other end; None where the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return Peer(pid, user)
