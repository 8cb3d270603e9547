# SPDX-License-Identifier: Apache-2.0
"""Bytes of a writer that wait to go somewhere together: referred to, not copied."""

from __future__ import annotations

from collections.abc import Iterable

GATHER_BYTES = 8 << 20
"""The bytes that a writer gathers for all subpartitions together."""


class Gathered:
    """Bytes of several subpartitions that wait to go somewhere, each one's in order: referred to, not copied."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: dict[int, list[memoryview]] = {}
        self._sizes: dict[int, int] = {}

    def __contains__(self, target: int) -> bool:
        return target in self._parts

    @property
    def targets(self) -> list[int]:
        """The subpartitions that have something here; `ALL` is one of its own."""
        return list(self._parts)

    def add(self, target: int, parts: Iterable[bytes | memoryview]) -> int:
        """Add bytes to a subpartition; how many it has now."""
        views = [memoryview(part) for part in parts]
        size = sum(map(len, views))
        self._parts.setdefault(target, []).extend(views)
        self.size += size
        self._sizes[target] = self._sizes.get(target, 0) + size
        return self._sizes[target]

    def take(self, target: int) -> list[memoryview]:
        """Take the parts of a subpartition, which are no longer here then."""
        self.size -= self._sizes.pop(target)
        return self._parts.pop(target)

    def put_back(self, target: int, parts: list[memoryview]) -> None:
        """Have these parts again, ahead of what came since."""
        size = sum(map(len, parts))
        self._parts[target] = [*parts, *self._parts.get(target, ())]
        self._sizes[target] = self._sizes.get(target, 0) + size
        self.size += size

    def clear(self) -> None:
        """Forget everything."""
        self.size = 0
        self._parts.clear()
        self._sizes.clear()
