# SPDX-License-Identifier: Apache-2.0
"""Spark's shuffle service killed, paused, with a login, its files damaged: right rows, or an error that fits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ess_harness import EssHarness
from ess_process import EssProcess, free_port
from penstock.errors import (
    AuthenticationError,
    IncompleteDataError,
    NoStorageError,
    PartitionLostError,
    PartitionReleasedError,
    SettingError,
    StorageError,
)
from penstock.services.spark_ess.places import Place, names_of, path_of
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    DatasetId,
    PartitionDescriptor,
    ProducerDescriptor,
    ShuffleDescriptor,
    ShuffleMasterContext,
)
from penstock.testing import DEADLINE
from penstock.testing.conformance import ShuffleServiceConformance
from penstock.testing.conformance_exchange import NUMBERS, ConformanceExchange, WantedPartition
from penstock.testing.waiting import Running
from small_disks import small_disk
from stored_rows import BATCHES, KIND, ROWS, rows_left, written
from underway import listed

pytestmark = pytest.mark.processes

SECRET = "the cluster's secret"


@pytest.fixture(scope="module")
def ess(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EssProcess]:
    """A service that asks for a secret, and remembers who has registered."""
    process = EssProcess(
        tmp_path_factory.mktemp("ess"), {"spark.authenticate": "true", "spark.authenticate.secret": SECRET}
    )
    yield process
    process.close()


@pytest.fixture
def service(ess: EssProcess, request: pytest.FixtureRequest) -> Iterator[EssHarness]:
    """An application of the test's own, whose readers wait for a service as long as one takes to start."""
    conf = {"spark.penstock.ess.secret": SECRET, "spark.penstock.ess.retryTimeout": f"{DEADLINE:g}s"}
    harness = EssHarness(ess, request.node.name, conf)
    yield harness
    harness.close()


@pytest.fixture
def exchange(service: EssHarness) -> Iterator[ConformanceExchange]:
    """The suite's workbench."""
    workbench = ConformanceExchange(service, asyncio.run)
    yield workbench
    workbench.close()


def file_of(service: EssHarness, descriptor: ShuffleDescriptor, host: str = "a") -> Path:
    """The data file of a partition."""
    folders = [str(service.folder(host).resolve() / service.application / "penstock")]
    return path_of(folders, names_of(Place.from_text(descriptor.location).number)[0])


@pytest.mark.thorough
@pytest.mark.parametrize("remembers", [True, False])
def test_a_restart_in_mid_data_is_waited_out(tmp_path: Path, remembers: bool) -> None:
    """Killed with chunks under way and started again: no row is lost or comes twice, if it knows who had registered.

    A service without its database has forgotten that, and the partition is lost.
    """
    process = EssProcess(tmp_path, {"spark.shuffle.service.db.enabled": str(remembers).lower()})
    harness = EssHarness(process, "restarted", {"spark.penstock.ess.retryTimeout": f"{DEADLINE:g}s"})
    exchange = ConformanceExchange(harness, asyncio.run)
    try:
        producer = written(exchange)
        consumer = exchange.consume([(producer.descriptor, 0, 4)])
        first = consumer.batch().num_rows
        process.kill()
        rest = Running(lambda: rows_left(consumer))
        process.start()
        if remembers:
            assert first + int(str(rest.join(DEADLINE))) == ROWS * BATCHES
        else:
            error = rest.outcome(DEADLINE)
            assert isinstance(error, PartitionLostError)
            assert "not registered" in str(error)
        exchange.close()
        harness.close()
    finally:
        process.close()


@pytest.mark.thorough
def test_a_pause_is_waited_out(service: EssHarness, exchange: ConformanceExchange) -> None:
    """A service that stands still for less than the timeout costs time and nothing else."""
    producer = written(exchange)
    consumer = exchange.consume([(producer.descriptor, 0, 4)])
    first = consumer.batch().num_rows
    service.process.pause()
    try:
        rest = Running(lambda: rows_left(consumer))
        with pytest.raises(AssertionError, match="did not end"):
            rest.join(1)
    finally:
        service.process.resume()
    assert first + int(str(rest.join())) == ROWS * BATCHES


@pytest.mark.thorough
def test_a_service_that_stays_silent_is_lost(ess: EssProcess) -> None:
    """It takes connections and answers nobody: after the timeout its partitions are lost, with the reason."""
    conf = {"spark.penstock.ess.secret": SECRET, "spark.penstock.ess.retryTimeout": "2s"}
    harness = EssHarness(ess, "silent", conf)
    exchange = ConformanceExchange(harness, asyncio.run)
    producer = written(exchange)
    consumer = exchange.consume([(producer.descriptor, 0, 4)])
    ess.pause()
    try:
        with pytest.raises(PartitionLostError, match=r"retryTimeout") as caught:
            rows_left(consumer)
    finally:
        ess.resume()
    assert caught.value.partition == producer.descriptor.partition.to_wire()
    exchange.close()
    harness.close()


def flip(path: Path) -> None:
    """Turn one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.chmod(0o600)
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Take the second half of the data away, and leave what stands after it where it is: a hole."""
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


@pytest.mark.parametrize("damage", [flip, cut])
def test_damage_is_found(service: EssHarness, exchange: ConformanceExchange, damage: Callable[[Path], None]) -> None:
    """A flipped bit and lost pages: an error that names the partition, and no wrong row before it."""
    producer = written(exchange)
    damage(file_of(service, producer.descriptor))
    with pytest.raises(IncompleteDataError, match="damaged") as caught:
        rows_left(exchange.consume([(producer.descriptor, 0, 4)]))
    assert caught.value.partition == producer.descriptor.partition.to_wire()


@pytest.mark.thorough
def test_a_full_disk_fails_the_task_and_the_next_one_fits(tmp_path: Path) -> None:
    """The writer's files are on the disk of its executor: an error that names the folder, and room again."""
    process = EssProcess(tmp_path / "ess")
    try:
        with small_disk(process.folder / "a", 8) as disk:
            harness = EssHarness(process, "full", {"spark.penstock.blocking.reserve": "0"})
            exchange = ConformanceExchange(harness, asyncio.run)
            with pytest.raises(StorageError, match=str(disk)):
                written(exchange)
            fits = exchange.produce(WantedPartition(KIND, index=1))
            fits.writer.write(pa.record_batch([pa.array(range(ROWS), pa.int64())], schema=NUMBERS), 0)
            fits.writer.finish()
            assert rows_left(exchange.consume([(fits.descriptor, 0)])) == ROWS
            exchange.close()
            harness.close()
    finally:
        process.close()


def test_a_file_that_ends_early_is_lost(service: EssHarness, exchange: ConformanceExchange) -> None:
    """The service closes the connection without a word, each time; the reader does not try for ever."""
    producer = written(exchange)
    consumer = exchange.consume([(producer.descriptor, 0, 4)])
    consumer.batch()
    path = file_of(service, producer.descriptor)
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[: len(data) // 4])
    with pytest.raises((PartitionLostError, PartitionReleasedError)):
        rows_left(consumer)


def test_another_secret_gets_nothing(ess: EssProcess, exchange: ConformanceExchange) -> None:
    """Neither writing nor reading works with a wrong secret, without one, or as another application."""
    producer = written(exchange)
    for name, conf in {
        "intruder": {"spark.penstock.ess.secret": "a guess"},
        "nobody": {"spark.penstock.ess.secret": ""},
    }.items():
        harness = EssHarness(ess, name, conf)
        stranger = ConformanceExchange(harness, asyncio.run)
        consumer = stranger.consume([(producer.descriptor, 0)])
        with pytest.raises((AuthenticationError, PartitionLostError)):
            consumer.drain()
        with pytest.raises((AuthenticationError, NoStorageError)):
            stranger.produce(WantedPartition(KIND))
        for member in stranger.members:
            member.close()
    other = EssHarness(ess, "another", {"spark.penstock.ess.secret": SECRET})
    reader = ConformanceExchange(other, asyncio.run)
    with pytest.raises(PartitionLostError):
        reader.consume([(producer.descriptor, 0)]).drain()
    reader.close()


def test_a_service_that_does_not_encrypt_is_named(ess: EssProcess) -> None:
    """Nothing falls back to plain text: whoever is told to encrypt hears that the service does not."""
    conf = {"spark.penstock.ess.secret": SECRET, "spark.penstock.ess.retryTimeout": f"{DEADLINE:g}s"}
    conf["spark.penstock.ess.cipher"] = "AES/CTR/NoPadding"
    harness = EssHarness(ess, "encrypts", conf)
    exchange = ConformanceExchange(harness, asyncio.run)
    with pytest.raises(AuthenticationError, match=r"nothing falls back.*spark\.network\.crypto\.enabled=true"):
        exchange.produce(WantedPartition(KIND))


def test_files_go_with_the_release_and_marks_with_the_job(service: EssHarness, exchange: ConformanceExchange) -> None:
    """The driver has them removed by the service itself; when the job is over, what says so goes too."""
    with exchange.job("short") as dataset:
        producer = exchange.produce(WantedPartition(KIND, dataset=dataset))
        producer.writer.finish()
        path = file_of(service, producer.descriptor)
        assert path.exists()
        asyncio.run(service.master.release_partition_externally(producer.descriptor))
        assert not path.exists()
        marks = listed(path.parent.parent, "*/shuffle_*")
        assert len(marks) == 2
        kept = exchange.produce(WantedPartition(KIND, dataset=dataset, index=1))
        kept.writer.finish()
    assert file_of(service, kept.descriptor).exists(), "a result outlives its job"
    asyncio.run(service.master.release_partition_externally(kept.descriptor))
    assert not listed(path.parent.parent, "*/shuffle_*")


def test_a_host_without_a_service_says_so(tmp_path: Path) -> None:
    """A writer names the port, the setting and the folders; the engine tries another host."""
    conf = {"spark.penstock.ess.port": str(free_port()), "spark.penstock.ess.directories": str(tmp_path)}
    settings = {**conf, "spark.penstock.ess.retryTimeout": "300ms"}

    class Nobody:
        """A service that was never started."""

        port, folder = int(conf["spark.penstock.ess.port"]), tmp_path

    harness = EssHarness(Nobody(), "alone", settings)  # type: ignore[arg-type]
    exchange = ConformanceExchange(harness, asyncio.run)
    with pytest.raises(NoStorageError, match=r"no shuffle service of Spark answers at 127\.0\.0\.1:\d+"):
        exchange.produce(WantedPartition(KIND))


@pytest.mark.parametrize(
    ("address", "conf", "is_refused"),
    [
        ("tcp://192.0.2.7:1", {}, True),
        ("tcp://192.0.2.7:1", {"spark.penstock.ess.secret": "s"}, False),
        ("tcp://192.0.2.7:1", {"spark.penstock.ess.acceptUnauthenticated": "true"}, False),
        ("tcp://127.0.0.1:1", {}, False),
        ("tcp://[::1]:1", {}, False),
    ],
)
def test_a_service_that_asks_nobody_is_refused_off_loopback(
    address: str, conf: dict[str, str], is_refused: bool
) -> None:
    """Unless Spark's authentication is on, or the user accepts it."""
    from penstock.services.spark_ess import SparkEssShuffleService

    context = ShuffleMasterContext("app", Settings.from_conf(conf), lambda error: pytest.fail(str(error)))
    master = SparkEssShuffleService().create_shuffle_master(context)
    partition = PartitionDescriptor(DatasetId("job", 0), 0, KIND, 1)
    producer = ProducerDescriptor(AttemptId("job", 0, 0, 1), "host-1-a", address)
    registration = master.register_partition_with_producer("job", partition, producer)
    if is_refused:
        with pytest.raises(SettingError, match=r"spark\.authenticate"):
            asyncio.run(registration)
    else:
        assert asyncio.run(registration).stores_local_resources_on is None


assert ShuffleServiceConformance  # its module has assertions in the workbench rewritten
