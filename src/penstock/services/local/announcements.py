# SPDX-License-Identifier: Apache-2.0
"""What a writer tells its environment of: pieces of segments that readers may see, several in one message."""

from __future__ import annotations

from penstock.buffer.data_types import BufferSlice
from penstock.link.frames import CONTINUES, FINISHED, FrameType, SliceRecord, slices_frame
from penstock.services.local.attachment import Attachment
from penstock.shuffle.metrics import MetricGroup


class Announcements:
    """The pieces that a writer has noted, in order; `port` is the writer's, known from its setup on."""

    def __init__(self, attachment: Attachment, metrics: MetricGroup, most: int) -> None:
        self.port = 0
        self._attachment = attachment
        self._metrics = metrics
        self._most = most
        self._noted: list[SliceRecord] = []

    def note(self, target: int, piece: BufferSlice) -> None:
        """Keep a piece for the next message."""
        length = piece.length | FINISHED if piece.finished else piece.length
        if piece.continues:
            length |= CONTINUES
        self._noted.append((self.port, target, piece.segment, piece.offset, length))
        self._metrics.add("bytes_out", piece.length)

    def ship_if_due(self) -> None:
        """Send the message, where it is as long as it may be: fewer system calls, and readers run close behind."""
        if len(self._noted) >= self._most:
            self.ship()

    def ship(self) -> None:
        """Send what was noted, if there is any."""
        if self._noted:
            self._metrics.add("buffers_out", len(self._noted))
            self._attachment.send(slices_frame(FrameType.SLICES, self._noted))
            self._noted.clear()
