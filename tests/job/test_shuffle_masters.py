# SPDX-License-Identifier: Apache-2.0
"""Services hear that a job is over after all else that they hear of it, however long that takes them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from job_fakes import DEADLINE, FakeShuffleService, fresh_service
from job_graphs import BLOCKING, SERVICE
from penstock.job.core.instructions import RegisterPartition
from penstock.job.shell import shuffle_masters
from penstock.job.shell.shuffle_masters import ShuffleMasters
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    DatasetId,
    PartitionDescriptor,
    PartitionId,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleMasterContext,
)

JOB = "job"
DATASET = DatasetId(JOB, 0)
TURNS = 20
"""Of the event loop: whoever waits for nothing has done its work by then."""


@pytest.fixture
def service() -> FakeShuffleService:
    """A service whose answers wait for a gate."""
    service = fresh_service()
    service.gate = threading.Event()
    return service


def masters() -> ShuffleMasters:
    """Those of an application, on the running loop."""
    return ShuffleMasters(ShuffleMasterContext("app", Settings(), lambda error: None), lambda partitions, cause: None)


def instruction(number: int = 0) -> RegisterPartition:
    """One partition of the job."""
    producer = ProducerDescriptor(AttemptId(JOB, 0, number, 0), "env", "")
    return RegisterPartition(0, SERVICE, PartitionDescriptor(DATASET, number, BLOCKING, 1), producer)


async def turns() -> None:
    """Let others do what they can."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_a_job_is_over_for_a_service_after_its_releases(service: FakeShuffleService) -> None:
    """One that is slow is waited for, and what comes later releases nothing: the service has forgotten the job."""
    gate = service.gate
    assert gate is not None

    async def run() -> None:
        all_masters = masters()
        gate.set()
        descriptors = [await all_masters.register(instruction(number)) for number in range(2)]
        gate.clear()
        releasing = asyncio.create_task(all_masters.release(JOB, descriptors))
        ending = asyncio.create_task(all_masters.unregister_job(JOB))
        await turns()
        assert service.story[-1] == f"release {DATASET}"
        gate.set()
        await asyncio.gather(releasing, ending)
        await all_masters.release(JOB, descriptors)
        await all_masters.close()

    asyncio.run(run())
    releases = [f"release {DATASET}", f"released {DATASET}"] * 2
    assert service.story[-6:] == [*releases, f"unregister {JOB}", "close"]


def test_a_partition_that_is_registered_when_its_job_ends_is_released_before(service: FakeShuffleService) -> None:
    """The answer names what is released at once then, and the service hears of the end after both."""
    gate = service.gate
    assert gate is not None

    async def run() -> None:
        all_masters = masters()

        async def register_in_vain() -> None:
            await all_masters.release(JOB, [await all_masters.register(instruction())])

        registering = asyncio.create_task(register_in_vain())
        await turns()
        ending = asyncio.create_task(all_masters.unregister_job(JOB))
        await turns()
        assert service.story[-1] == f"register {JOB}"
        gate.set()
        await asyncio.gather(registering, ending)

    asyncio.run(run())
    own = [f"registered {DATASET}", f"release {DATASET}", f"released {DATASET}"]
    assert service.story[2:] == [f"register {JOB}", *own, f"unregister {JOB}"]


def test_a_release_that_hangs_does_not_keep_the_job(
    service: FakeShuffleService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a minute, here at once, the service hears of the end all the same, and the log says what is missing."""
    gate = service.gate
    assert gate is not None
    monkeypatch.setattr(shuffle_masters, "CALL_SECONDS", 0.0)

    async def run() -> None:
        all_masters = masters()
        gate.set()
        descriptor = await all_masters.register(instruction())
        gate.clear()
        releasing = asyncio.create_task(all_masters.release(JOB, [descriptor]))
        await asyncio.wait_for(all_masters.unregister_job(JOB), DEADLINE)
        gate.set()
        await releasing

    asyncio.run(run())
    assert service.story[-2:] == [f"unregister {JOB}", f"released {DATASET}"]
    assert "1 registrations and releases of its partitions are under way" in caplog.text


def test_a_job_of_which_nothing_was_registered_is_no_news(service: FakeShuffleService) -> None:
    """No service is started to hear that it is over, or to release what it never had."""

    async def run() -> None:
        all_masters = masters()
        lost = ShuffleDescriptor(PartitionId(DATASET, 0, 0), SERVICE, BLOCKING)
        await all_masters.release(JOB, [lost])
        await all_masters.unregister_job(JOB)

    asyncio.run(run())
    assert not service.story
