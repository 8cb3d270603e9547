# SPDX-License-Identifier: Apache-2.0
"""Cuts what a task sends over the host service's Unix socket into frames, behind its greeting. Sans-I/O.

Frames change with versions, the greeting does not: so one of another version is told apart from bytes that mean
nothing. Over the port the handshake does that.
"""

from __future__ import annotations

from penstock.connection.frames import FrameReader
from penstock.connection.handshake import check_greeting, greeting


class GreetedReader:
    """A decoder; VersionError for a peer of another version."""

    def __init__(self, capacity: int, peer: str) -> None:
        self._frames = FrameReader(capacity)
        self._peer = peer
        self._word = memoryview(bytearray(len(greeting())))
        self._missing = len(self._word)

    @property
    def is_at_boundary(self) -> bool:
        """True if the stream may end here."""
        return self._missing in (0, len(self._word)) and self._frames.is_at_boundary

    def next_target(self) -> memoryview:
        """The place for the next bytes."""
        return self._word[-self._missing :] if self._missing else self._frames.next_target()

    def received(self, count: int) -> None:
        """So many bytes of the last target were filled."""
        if not self._missing:
            self._frames.received(count)
            return
        self._missing -= count
        if not self._missing:
            check_greeting(bytes(self._word), self._peer)

    def next_message(self) -> tuple[int, memoryview] | None:
        """The next whole frame, or None until more bytes come."""
        return None if self._missing else self._frames.next_message()
