# SPDX-License-Identifier: Apache-2.0
"""Sort buffers come out of the network memory's budget, and go back to it."""

from __future__ import annotations

import asyncio

import pytest

from penstock.buffer import NetworkBufferPool
from penstock.environment.partitions.sort_buffers import LEAST, SortBuffers, SortGrant
from penstock.errors import InsufficientBuffersError, TaskCancelledError

SEGMENT = 256 << 10
MIB = 1 << 20


def reserve(buffers: SortBuffers, wanted: int, *, cancelled: bool = False) -> SortGrant:
    """One writer's buffer."""
    return asyncio.run(buffers.reserve(wanted, "the writer of p", lambda: cancelled))


def test_what_is_granted_is_reserved_and_comes_back_once() -> None:
    """Guaranteed segments rise by the buffer's size, none is taken out, and giving back restores them."""
    pool = NetworkBufferPool(1024)
    buffers = SortBuffers(pool, SEGMENT)
    buffer = reserve(buffers, 16 * MIB)
    assert buffer.bytes == 16 * MIB
    assert (pool.statistics().guaranteed, pool.statistics().in_use) == (64, 0)
    buffer.give_back()
    buffer.give_back()
    assert pool.statistics().guaranteed == 0
    pool.check()


def test_each_writer_takes_a_share_of_what_is_left() -> None:
    """Twenty writers get less and less, never less than the least, and leave an eighth of all to others."""
    pool = NetworkBufferPool(256)
    buffers = SortBuffers(pool, SEGMENT, patience=0.0)
    granted: list[SortGrant] = []

    def reserve_all() -> None:
        while True:
            granted.append(reserve(buffers, 48 * MIB))

    with pytest.raises(InsufficientBuffersError, match=r"spark\.penstock\.network\.memory") as caught:
        reserve_all()
    assert "spark.penstock.blocking.sortBuffer" in str(caught.value)
    sizes = [buffer.bytes for buffer in granted]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) >= 20
    assert sizes[0] == 7 * MIB
    assert sizes[-1] >= LEAST
    assert sum(sizes) <= 56 * MIB
    for buffer in granted:
        buffer.give_back()
    assert pool.statistics().guaranteed == 0


def test_a_writer_waits_for_another_to_end() -> None:
    """If nothing is left, the next buffer is granted when one comes back."""

    async def main() -> None:
        pool = NetworkBufferPool(9)
        buffers = SortBuffers(pool, SEGMENT)
        first = await buffers.reserve(MIB, "a", lambda: False)
        second = await buffers.reserve(MIB, "b", lambda: False)
        third = asyncio.create_task(buffers.reserve(MIB, "c", lambda: False))
        done, _ = await asyncio.wait([third], timeout=0.05)
        assert not done
        first.give_back()
        (await third).give_back()
        second.give_back()
        assert pool.statistics().guaranteed == 0

    asyncio.run(main())


def test_a_task_that_is_told_to_stop_does_not_wait() -> None:
    """Cancelling ends the wait for memory."""
    buffers = SortBuffers(NetworkBufferPool(3), SEGMENT)
    with pytest.raises(TaskCancelledError, match="sort buffer"):
        reserve(buffers, MIB, cancelled=True)
