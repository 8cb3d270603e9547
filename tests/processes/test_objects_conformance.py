# SPDX-License-Identifier: Apache-2.0
"""The service `objects` keeps the promises of blocking partitions, in a folder and in a store that speaks S3.

The store is the one that `PENSTOCK_TEST_S3` names, a URI such as moto's server takes; without it the folder alone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from effort import some_of
from objects_harness import ObjectsHarness
from penstock.errors import IncompleteDataError, PartitionLostError, ProducerFailedError, SettingError, StorageError
from penstock.services.objects import ObjectsShuffleService
from penstock.services.objects.places import ObjectFolder
from penstock.testing.conformance import JOB, ConformanceExchange, ShuffleServiceConformance
from penstock.testing.conformance_exchange import NUMBERS, Producer, WantedPartition, numbers
from penstock.testing.waiting import wait_until
from small_disks import small_disk

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


def begun(harness: ObjectsHarness, schema: pa.Schema = NUMBERS) -> tuple[ConformanceExchange, Producer]:
    """A workbench, and a partition that is not written yet."""
    workbench = ConformanceExchange(harness, asyncio.run)
    return workbench, workbench.produce(WantedPartition(ObjectsShuffleService.capabilities.kinds[0], schema=schema))


def test_a_full_store_frees_its_room_and_says_why(tmp_path: Path) -> None:
    """The rows go ahead of the cause, which needs room; a reader hears it at once."""
    schema = pa.schema([pa.field("s", pa.binary())])
    with small_disk(tmp_path / "store", 4) as store:
        harness = ObjectsHarness(str(store), "app")
        workbench, producer = begun(harness, schema)
        megabyte = pa.record_batch([pa.array([os.urandom(1 << 20)], pa.binary())], schema=schema)

        def overfill() -> None:
            for _ in range(200):
                producer.writer.write(megabyte, 0)
            producer.writer.finish()

        with pytest.raises(StorageError, match="can't be written"):
            overfill()
        assert "data" not in harness.folder.names(harness.folder.place(producer.descriptor.partition))
        with pytest.raises(ProducerFailedError, match="StorageError"):
            workbench.consume([(producer.descriptor, 0)], schema).drain()
        workbench.close()
        harness.close()


def test_a_look_that_shows_nothing_is_not_believed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that is away as a reader looks, and comes back; and one that stays away."""
    harness = ObjectsHarness(str(tmp_path / "store"), "app")
    workbench, producer = begun(harness)
    producer.writer.write(numbers(*range(10)), 0)
    producer.writer.finish()
    looks: list[str] = []
    names = ObjectFolder.names

    def away(folder: ObjectFolder, place: str) -> set[str]:
        looks.append(place)
        if len(looks) == 1:
            raise OSError(116, "Stale file handle", place)
        return set() if len(looks) == 2 else names(folder, place)

    with monkeypatch.context() as patched:
        patched.setattr(ObjectFolder, "names", away)
        consumer = workbench.consume([(producer.descriptor, 0)])
        assert sorted(consumer.values()) == list(range(10))
    assert len(looks) == 3
    shutil.rmtree(harness.folder.place(producer.descriptor.partition))
    with pytest.raises(PartitionLostError, match="there is nothing at"):
        workbench.consume([(producer.descriptor, 0)]).drain()
    workbench.close()
    harness.close()


def test_a_small_object_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    """In a folder too: a reader that looks while an index is written finds none."""
    folder, data = ObjectFolder(str(tmp_path), "app"), bytes(1 << 20)
    path = f"{folder.root}/job/index"
    done = threading.Event()
    found: set[int] = set()

    def look() -> None:
        while not done.is_set():
            if "index" in folder.names(path.rpartition("/")[0]):
                found.add(len(folder.read(path)))

    folder.write(path, data)
    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(200):
        folder.write(path, data)
    done.set()
    reader.join()
    assert found <= {len(data)}
    assert folder.names(path.rpartition("/")[0]) == {"index"}


def test_a_job_that_is_over_leaves_no_object(tmp_path: Path) -> None:
    """Also where its last partition was released before it was over, as those between its stages are."""
    harness = ObjectsHarness(str(tmp_path), "app")
    workbench, producer = begun(harness)
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


@pytest.mark.parametrize("spelled", ["{0}/a", "{0}//a", "{0}/./a", "./a", "a", "file://{0}//a"])
def test_a_folder_is_the_same_however_it_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    """A second slash, a dot, the working folder: what is written there is found."""
    monkeypatch.chdir(tmp_path)
    folder = ObjectFolder(spelled.format(tmp_path), "app")
    folder.write(f"{folder.root}/job/index")
    assert folder.names(f"{folder.root}/job") == {"index"}
    assert (tmp_path / "a" / "penstock-app" / "job" / "index").exists()
