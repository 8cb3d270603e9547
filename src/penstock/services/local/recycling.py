# SPDX-License-Identifier: Apache-2.0
"""What a gate gives back to its environment: segments it has copied, several in one message."""

from __future__ import annotations

from penstock.link.frames import FrameType, segments_frame
from penstock.services.local.attachment import Attachment

_SHIP_AT = 4
"""Segments per message; less than the environment's window, or the pair would stop."""


class Recycling:
    """The segments that a gate has copied; `port` is the gate's, known from its setup on."""

    def __init__(self, attachment: Attachment) -> None:
        self.port = 0
        self._attachment = attachment
        self._segments: list[int] = []

    def add(self, segment: int) -> None:
        """Give back a segment, with those before it where that makes a message."""
        self._segments.append(segment)
        if len(self._segments) >= _SHIP_AT:
            self.ship()

    def keep(self, segment: int) -> None:
        """Give a segment back with the next ones, and not before."""
        self._segments.append(segment)

    def ship(self) -> None:
        """Give back what was added, if there is any: ahead of a wait."""
        if self._segments:
            self._attachment.send(segments_frame(FrameType.RECYCLE, self.port, self._segments))
            self._segments.clear()
