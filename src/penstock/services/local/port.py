# SPDX-License-Identifier: Apache-2.0
"""A writer's or gate's end of the host's data plane: what it is told, and what it refuses to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from penstock.errors import ProtocolError

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
    """A `HostPort` of functions; what is not given is refused with ProtocolError."""

    __slots__ = ("name", "on_error", "on_event", "on_grant", "on_slice", "on_store")

    def __init__(
        self,
        name: str,
        *,
        on_slice: OnSlice | None = None,
        on_event: OnEvent | None = None,
        on_error: OnError | None = None,
        on_store: OnStore | None = None,
    ) -> None:
        self.name = name
        self.on_slice: OnSlice = on_slice or self._refuse
        self.on_event: OnEvent = on_event or self._refuse
        self.on_error: OnError = on_error or self._refuse
        self.on_grant: OnGrant = self._refuse
        """Set by a writer's end."""
        self.on_store: OnStore = on_store or self._refuse

    def _refuse(self, *said: object) -> NoReturn:
        raise ProtocolError(f"{self.name} was told {said}, which is not for it")
