# SPDX-License-Identifier: Apache-2.0
"""The memory of a user at the host service: a limit, and a line."""

from __future__ import annotations

from penstock.external.chunk_memory import ChunkMemory
from penstock.external.requests import CHUNK_BYTES


def test_there_are_so_many_buffers_and_no_more() -> None:
    """One that comes back is used again."""
    memory = ChunkMemory(2)
    first, second = memory.take(), memory.take()
    assert memory.take() is None
    assert first is not None
    assert second is not None
    assert memory.bytes == 2 * CHUNK_BYTES
    memory.give_back(first)
    assert memory.take() is first


def test_those_who_wait_are_told_once_in_the_order_of_coming() -> None:
    """One free buffer is one word; one that has left is not told, and the next one is."""
    memory, told = ChunkMemory(1), []
    held = memory.take()
    assert held is not None

    def one() -> None:
        told.append(1)

    def two() -> None:
        told.append(2)

    for wake in (one, one, two):
        memory.wait(wake)
    memory.give_back(held)
    assert told == [1]
    memory.take()
    memory.wait(one)
    memory.leave(two)
    memory.give_back(held)
    assert told == [1, 1]
