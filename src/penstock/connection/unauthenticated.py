# SPDX-License-Identifier: Apache-2.0
"""Those who have connected and have not proved themselves yet: few of them, and few of one source. Pure.

When there are too many, a new one does not have to wait: who came first has to go, of those with the same source
where that has too many, else of the source that has most. An honest peer proves itself in milliseconds, so it is not
the one that goes, whatever number of silent connections others hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 256
"""Unauthenticated peers at a time."""
MOST_OF_ONE = 64
"""Those of one source at a time: more than a host has environments, or a process threads that attach at once."""


class Unauthenticated(Generic[T]):
    """The unauthenticated peers at one door."""

    def __init__(self, most: int = MOST, most_of_one: int = MOST_OF_ONE) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._by_source: dict[str, dict[T, None]] = {}
        self._sources: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[T]:
        return iter(self._sources)

    def enter(self, peer: T, source: str) -> T | None:
        """A peer has connected; returns the one that has to go for it, if any."""
        gone: T | None = None
        same = self._by_source.get(source, {})
        if len(same) >= self._most_of_one:
            gone = next(iter(same))
        elif len(self) >= self._most:
            most = max(self._by_source, key=lambda each: len(self._by_source[each]))
            gone = next(iter(self._by_source[most]))
        if gone is not None:
            self.leave(gone)
        self._sources[peer] = source
        self._by_source.setdefault(source, {})[peer] = None
        return gone

    def leave(self, peer: T) -> None:
        """It has proved itself, or is gone; idempotent."""
        source = self._sources.pop(peer, None)
        if source is None:
            return
        same = self._by_source[source]
        del same[peer]
        if not same:
            del self._by_source[source]
