# SPDX-License-Identifier: Apache-2.0
"""The access of a service that keeps its data in the environment process: segments, and ports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from penstock.attachment.ports import Ports
from penstock.buffer.segments import SegmentMemory
from penstock.shuffle.host import HostPort


class AttachedDataPlane:
    """A `HostDataPlane`; `lock` is what frames are received under."""

    __slots__ = ("_lock", "_ports", "memory", "send")

    def __init__(
        self, memory: SegmentMemory, ports: Ports, lock: AbstractContextManager[object], send: Callable[[bytes], None]
    ) -> None:
        self.memory = memory
        self.send = send
        """Send whole frames; raises EnvironmentLostError when the environment is gone."""
        self._ports = ports
        self._lock = lock

    def open_port(self, port: HostPort, /) -> int:
        """Give a writer or gate its number."""
        with self._lock:
            return self._ports.add(port)

    def close_port(self, number: int, /) -> None:
        """Forget a writer or gate; frames for it are dropped from now on."""
        with self._lock:
            self._ports.remove(number)
