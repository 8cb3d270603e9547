# SPDX-License-Identifier: Apache-2.0
"""A gate's end of its host's data plane: what has come and was not looked at yet, and what goes back."""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.lifecycle.endpoints import GateEvent, GateLifecycle, GateState
from penstock.link.calls import CloseGate, OpenGate
from penstock.link.frames import LinkFrameType, channel_frame, segments_frame
from penstock.services.local.port import OnEvent, Port
from penstock.shuffle.descriptors import InputGateDescriptor
from penstock.shuffle.host import TaskHost
from penstock.shuffle.service import OwnerContext

Item = tuple[int, int, int] | bytes | dict[str, Any] | BaseException
"""A slice as segment, offset and length; an event; what names files; or why a channel can't be read."""

_SHIP_AT = 4
"""Segments per message; less than the environment's window, or the pair would stop."""


class GateEnd:
    """The port of a gate: made known, and closed."""

    def __init__(
        self, host: TaskHost, owner: OwnerContext, descriptor: InputGateDescriptor, flow_control: str
    ) -> None:
        self.incoming: deque[tuple[int, Item]] = deque()
        """By channel."""
        self._host = host
        self._plane = host.data_plane()
        self._owner = owner
        self._descriptor = descriptor
        self._flow_control = flow_control
        self._copied: list[int] = []
        """Segments that go back with the next message."""
        self._port = 0
        self._lifecycle = GateLifecycle(f"gate {descriptor.gate} of {owner.name}")

    def open(self, on_event: OnEvent) -> None:
        """Make the gate known and request the partitions that are known already."""
        port = Port(
            f"gate {self._descriptor.gate}", on_slice=self._on_slice, on_event=on_event, on_error=self._on_error
        )
        self._port = self._plane.open_port(port)
        self._lifecycle.move(GateEvent.SET_UP)
        self._host.ask(OpenGate(self._port, self._owner.attempt, self._descriptor.channels, self._flow_control))

    def resume(self, channel: int) -> None:
        """Let a channel that an event blocked at its sender go on."""
        self._plane.send(channel_frame(LinkFrameType.RESUME, self._port, channel, b""))

    def close(self) -> None:
        """Cancel what is still open and give back all buffers; idempotent."""
        was_open = self._lifecycle.state is GateState.OPEN
        self._lifecycle.move(GateEvent.CLOSE)
        if was_open:
            self._plane.close_port(self._port)
            self._host.hand_in(CloseGate(self._port))
        self.incoming.clear()

    def hold(self, segment: int) -> None:
        """Give back a segment with the next message."""
        self._copied.append(segment)

    def recycle(self, segment: int) -> None:
        """Give back a segment that was copied, with those before it where that makes a message."""
        self._copied.append(segment)
        if len(self._copied) >= _SHIP_AT:
            self.ship()

    def ship(self) -> None:
        """Give back what was copied, if there is any: ahead of a wait."""
        if self._copied:
            self._plane.send(segments_frame(LinkFrameType.RECYCLE, self._port, self._copied))
            self._copied.clear()

    def _on_slice(self, channel: int, segment: int, offset: int, length: int) -> None:
        self.incoming.append((channel, (segment, offset, length)))

    def _on_error(self, channel: int, error: BaseException) -> None:
        self.incoming.append((channel, error))
