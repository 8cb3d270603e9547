# SPDX-License-Identifier: Apache-2.0
"""The master of a service forgets a job once: when it is over, and the last of it is released, in any order."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from penstock.services.partitions_of_jobs import PartitionsOfJobs
from penstock.shuffle import DatasetId, PartitionId, PartitionKind, ShuffleDescriptor

JOB = "job"
A, B = (
    ShuffleDescriptor(PartitionId(DatasetId(JOB, 0), index, 0), "test", PartitionKind.BLOCKING_SORT_MERGE)
    for index in range(2)
)


@pytest.mark.parametrize("order", sorted(itertools.permutations(["a", "b", "end"])))
def test_a_job_is_forgotten_once_after_all_of_it(order: tuple[str, ...]) -> None:
    """Also where all was released before the job was over; a partition that is released twice is released once."""
    done: list[str] = []

    async def forget(job: str) -> None:
        done.append(job)

    async def release(descriptor: ShuffleDescriptor) -> None:
        done.append(f"partition {descriptor.partition.index}")

    async def run() -> None:
        held = PartitionsOfJobs(forget)
        held.begin(JOB)
        held.add(A)
        held.add(B)
        for step in order:
            assert JOB not in done
            if step == "end":
                held.end(JOB)
            else:
                descriptor = A if step == "a" else B
                await asyncio.gather(held.release(descriptor, release), held.release(descriptor, release))
        await asyncio.sleep(0)
        assert held.clear() == []

    asyncio.run(run())
    assert sorted(done[:-1]) == ["partition 0", "partition 1"]
    assert done[-1] == JOB


def test_a_job_that_ends_in_the_middle_of_a_release_is_forgotten_after_it() -> None:
    """Else what the release writes would come after what the end of the job removes."""
    done: list[str] = []

    async def forget(job: str) -> None:
        done.append(job)

    async def run() -> None:
        held = PartitionsOfJobs(forget)
        held.add(A)
        gate = asyncio.Event()

        async def release(_: ShuffleDescriptor) -> None:
            await gate.wait()
            done.append("released")

        releasing = asyncio.create_task(held.release(A, release))
        await asyncio.sleep(0)
        held.end(JOB)
        await asyncio.sleep(0)
        gate.set()
        await releasing

    asyncio.run(run())
    assert done == ["released", JOB]
