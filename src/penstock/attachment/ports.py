# SPDX-License-Identifier: Apache-2.0
"""The open ports of an attachment, and how the environment's frames find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.link.control import carried_error, unpack
from penstock.link.frames import LinkFrameType, read_channel, read_event, read_port, read_segments, read_slices
from penstock.link.numbers import Numbered
from penstock.shuffle.host import HostPort

Ports = Numbered[HostPort]
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


PORT_FRAMES: Final[dict[int, Callable[[Ports, memoryview], None]]] = {
    LinkFrameType.DELIVER: _deliver,
    LinkFrameType.GRANT: _grant,
    LinkFrameType.STORE: _store,
    LinkFrameType.CHANNEL_EVENT: _event,
    LinkFrameType.CHANNEL_ERROR: _error,
}
"""The reader of each frame that is for a port."""
