# SPDX-License-Identifier: Apache-2.0
"""The supply of a writer that stores everything by itself: memory to sort in, which it holds until it closes."""

from __future__ import annotations

from collections.abc import Callable

from penstock.environment.partitions.sort_buffers import SortBuffers
from penstock.errors import ProtocolError


class WholeSupply:
    """A `Supply` of no segments."""

    is_packed = False
    pool = None

    def __init__(self) -> None:
        self._is_open = True
        self._give_back: Callable[[], None] | None = None

    async def reserve(self, buffers: SortBuffers, wanted: int, owner: str, is_cancelled: Callable[[], bool]) -> int:
        """The bytes that the writer may collect; errors as of `SortBuffers.reserve`."""
        if not wanted:
            return 0
        buffer = await buffers.reserve(wanted, owner, is_cancelled)
        if self._is_open:
            self._give_back = buffer.give_back
        else:
            buffer.give_back()
        return buffer.bytes

    def refill(self) -> None:
        """Raise ProtocolError: there are no segments."""
        raise ProtocolError("the writer of a blocking partition has no segments")

    overdraw = check_stores = stored = refill

    def pause(self, *, is_paused: bool) -> None:
        """Nothing changes: it waits for no reader, so none has to be spared."""

    def close(self) -> None:
        """Give back what is reserved; idempotent."""
        self._is_open = False
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()
