# SPDX-License-Identifier: Apache-2.0
"""The service `objects` keeps the promises of blocking partitions, in a folder and in a store that speaks S3.

The store is the one that `PENSTOCK_TEST_S3` names, a URI such as moto's server takes; without it the folder alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from effort import some_of
from objects_harness import ObjectsHarness
from penstock.errors import IncompleteDataError, SettingError
from penstock.services.objects import ObjectsShuffleService
from penstock.services.objects.places import ObjectFolder
from penstock.testing.conformance import JOB, ConformanceExchange, ShuffleServiceConformance
from penstock.testing.conformance_exchange import WantedPartition, numbers
from penstock.testing.waiting import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectsHarness]:
    """The application of the suite; it leaves no object."""
    uri = os.environ.get("PENSTOCK_TEST_S3") or str(tmp_path_factory.mktemp("objects"))
    harness = ObjectsHarness(uri, "app-20260101-0001")
    yield harness
    harness.close()
    assert not harness.folder.names(harness.folder.root)


class TestObjects(ShuffleServiceConformance):
    """The kinds that are complete before they are read. All are kept the same way, so one stands for three."""

    kinds = some_of(ObjectsShuffleService.capabilities.kinds, 3)
    request_timeout = 2.0

    @pytest.fixture
    def service(self, application: ObjectsHarness) -> Iterator[ObjectsHarness]:
        """The shared application."""
        yield application
        application.forget_hosts()

    def test_a_flipped_bit_is_found(self, exchange: ConformanceExchange, application: ObjectsHarness) -> None:
        """In the rows and in the index: the error names the partition."""
        for index, name in enumerate(("data", "index")):
            producer = exchange.produce(WantedPartition(self.kinds[0], index=index))
            producer.writer.write(numbers(*range(1000)), 0)
            producer.writer.finish()
            path = f"{application.folder.place(producer.descriptor.partition)}/{name}"
            data = bytearray(application.folder.read(path))
            data[len(data) // 2] ^= 1
            application.folder.write(path, bytes(data))
            with pytest.raises(IncompleteDataError, match="damaged") as caught:
                exchange.consume([(producer.descriptor, 0)]).drain()
            assert caught.value.partition == producer.descriptor.partition.to_wire()


def test_a_job_that_is_over_leaves_no_object(tmp_path: Path) -> None:
    """Also where its last partition was released before it was over, as those between its stages are."""
    harness = ObjectsHarness(str(tmp_path), "app")
    workbench = ConformanceExchange(harness, asyncio.run)
    producer = workbench.produce(WantedPartition(ObjectsShuffleService.capabilities.kinds[0]))
    producer.writer.write(numbers(1), 0)
    producer.writer.finish()

    async def end() -> None:
        await harness.master.release_partition_externally(producer.descriptor)
        harness.master.unregister_job(JOB)
        await asyncio.to_thread(
            wait_until, lambda: not harness.folder.names(harness.folder.root), "the objects of the job are removed"
        )

    asyncio.run(end())
    workbench.close()
    harness.close()


def test_names_lead_nowhere_else(tmp_path: Path) -> None:
    """An application that calls itself a path stays below the folder; without a place there is an error."""
    folder = ObjectFolder(str(tmp_path), "../../etc/x")
    assert folder.root == f"{tmp_path}/penstock-..%2F..%2Fetc%2Fx"
    with pytest.raises(SettingError, match=r"spark\.penstock\.objects\.uri"):
        ObjectFolder("", "app")
