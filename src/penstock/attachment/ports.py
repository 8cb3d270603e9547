# SPDX-License-Identifier: Apache-2.0
"""The writers' and gates' ends of an attachment: what the environment may tell them, and how its frames find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from penstock.link.control import carried_error, unpack
from penstock.link.frames import FrameType, read_channel, read_event, read_port, read_segments, read_slices
from penstock.link.numbers import Numbered
from penstock.shuffle.errors import ProtocolError

OnGrant = Callable[[tuple[int, ...]], None]
"""Segments to write into."""
OnStore = Callable[[str], None]
"""Memory has come to its end: store in this folder."""
OnSlice = Callable[[int, int, int, int], None]
"""Data of a channel: channel, segment, offset, length."""
OnEvent = Callable[[int, int, bytes], None]
"""An event of a channel: channel, data type, payload."""
OnError = Callable[[int, BaseException], None]
"""A channel can't be read, or what was written can't be kept."""


class Port:
    """Functions that are called with the attachment's lock held; what is not given is refused with ProtocolError."""

    __slots__ = ("name", "on_error", "on_event", "on_grant", "on_slice", "on_store")

    def __init__(
        self,
        name: str,
        *,
        on_slice: OnSlice | None = None,
        on_event: OnEvent | None = None,
        on_error: OnError | None = None,
    ) -> None:
        self.name = name
        self.on_slice: OnSlice = on_slice or self._refuse
        self.on_event: OnEvent = on_event or self._refuse
        self.on_error: OnError = on_error or self._refuse
        self.on_grant: OnGrant = self._refuse
        """Set by a writer's end."""
        self.on_store: OnStore = self._refuse
        """Set by the one writer that stores."""

    def _refuse(self, *said: object) -> NoReturn:
        raise ProtocolError(f"{self.name} was told {said}, which is not for it")


Ports = Numbered[Port]
"""The open ports of one attachment. A frame for one that is closed crossed its closing: it is dropped."""


def _deliver(ports: Ports, body: memoryview) -> None:
    """Slices of data, perhaps for several ports."""
    for number, channel, segment, offset, length in read_slices(body):
        port = ports.live.get(number) or ports.get(number)
        if port is not None:
            port.on_slice(channel, segment, offset, length)


def _grant(ports: Ports, body: memoryview) -> None:
    number, segments = read_segments(body)
    port = ports.get(number)
    if port is not None:
        port.on_grant(segments)


def _store(ports: Ports, body: memoryview) -> None:
    number, folder = read_port(body)
    port = ports.get(number)
    if port is not None:
        port.on_store(folder)


def _event(ports: Ports, body: memoryview) -> None:
    number, data_type, channel, payload = read_event(body)
    port = ports.get(number)
    if port is not None:
        port.on_event(channel, data_type, payload)


def _error(ports: Ports, body: memoryview) -> None:
    number, channel, payload = read_channel(body)
    port = ports.get(number)
    if port is not None:
        port.on_error(channel, carried_error(unpack(payload)))


PORT_FRAMES: Final[dict[FrameType, Callable[[Ports, memoryview], None]]] = {
    FrameType.DELIVER: _deliver,
    FrameType.GRANT: _grant,
    FrameType.STORE: _store,
    FrameType.CHANNEL_EVENT: _event,
    FrameType.CHANNEL_ERROR: _error,
}
"""Who reads each frame that is for a port."""
