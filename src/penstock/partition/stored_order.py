# SPDX-License-Identifier: Apache-2.0
"""Which of a stored partition's items leave memory first: the oldest, or those that are needed last. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.partition.extents import BROADCAST
from penstock.partition.stored_cursor import Logs
from penstock.partition.stored_items import Item, MemoryBooks


def oldest(books: MemoryBooks, size: int) -> list[Item]:
    """Items in memory only, oldest first, of so many bytes together and at least one."""
    chosen: list[Item] = []
    for item in books.unspilled:
        chosen.append(item)
        size -= item.length
        if size <= 0:
            break
    return chosen


def farthest(books: MemoryBooks, segments: Iterable[int], count: int, distance: Callable[[Item], int]) -> list[int]:
    """Up to `count` of these segments: those whose next needed item is farthest from being read."""
    found = list(segments)
    if len(found) > count:
        nearest = {segment: min(map(distance, books.segments[segment])) for segment in found}
        found.sort(key=nearest.__getitem__, reverse=True)
    return found[:count]


def distance_to_reading(logs: Logs, unread: int) -> Callable[[Item], int]:
    """The distance of an item from being read; one without a reader yet is `unread` farther than all others."""
    needs = {number: log.needs for number, log in logs.open if log.cursors}
    needs[BROADCAST] = min((need for need in needs.values() if need is not None), default=None)

    def distance(item: Item) -> int:
        need = needs.get(item.subpartition)
        return item.sequence - need if need is not None else item.sequence + unread

    return distance
