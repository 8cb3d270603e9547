# SPDX-License-Identifier: Apache-2.0
"""The memory of an application at the host service: a limit, a line, and one buffer for everybody."""

from __future__ import annotations

from penstock.external.chunk_memory import ChunkMemory
from penstock.external.requests import CHUNK_BYTES


def test_a_connection_without_a_buffer_never_waits() -> None:
    """All buffers are held by others, who may wait for it: it gets one beyond the limit, which does not stay."""
    memory = ChunkMemory(2)
    first, second = memory.take(is_only=False), memory.take(is_only=False)
    assert memory.take(is_only=False) is None
    beyond = memory.take(is_only=True)
    assert first is not None
    assert second is not None
    assert beyond is not None
    assert memory.bytes == 3 * CHUNK_BYTES
    memory.give_back(beyond)
    assert memory.bytes == 2 * CHUNK_BYTES
    assert memory.take(is_only=False) is None
    memory.give_back(first)
    assert memory.take(is_only=False) is first


def test_those_who_wait_are_told_once_in_the_order_of_coming() -> None:
    """One free buffer is one word; one that has left is not told, and the next one is."""
    memory, told = ChunkMemory(1), []
    held = memory.take(is_only=False)
    assert held is not None

    def one() -> None:
        told.append(1)

    def two() -> None:
        told.append(2)

    for wake in (one, one, two):
        memory.wait(wake)
    memory.give_back(held)
    assert told == [1]
    memory.take(is_only=False)
    memory.wait(one)
    memory.leave(two)
    memory.give_back(held)
    assert told == [1, 1]
