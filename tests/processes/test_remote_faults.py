# SPDX-License-Identifier: Apache-2.0
"""A manager and workers killed, paused, full, damaged, asked by strangers: right rows, or an error that fits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from effort import THOROUGH, with_all
from flipping_proxy import FlippingProxy
from penstock import client
from penstock.errors import (
    AuthenticationError,
    IncompleteDataError,
    NoStorageError,
    PartitionLostError,
    PenstockError,
    SettingError,
    StaleError,
    StorageError,
)
from penstock.services.remote import RemoteShuffleService
from penstock.settings import Settings
from penstock.shuffle import ShuffleMasterContext
from penstock.testing import DEADLINE
from penstock.testing.conformance import ConformanceExchange
from penstock.testing.conformance_exchange import NUMBERS, Producer, WantedPartition
from penstock.testing.waiting import Running, wait_until
from remote_cluster import RemoteCluster
from remote_harness import RemoteHarness
from small_disks import small_disk
from stored_rows import BATCHES, KIND, ROWS, rows_left, write, written
from underway import listed

pytestmark = pytest.mark.processes

PAUSE = 20.0 if THOROUGH else 0.5
PLACES = (20_000, 300_000, 1_000_003, 1_048_700, 4_200_001, 9_000_007)
FLIPS = PLACES if THOROUGH else PLACES[::3]
PATIENT = {"spark.penstock.remote.retryTimeout": f"{DEADLINE:g}s"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteCluster]:
    """A manager and two workers that outlive their test."""
    found = RemoteCluster(tmp_path_factory.mktemp("remote"))
    yield found
    found.close()


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RemoteCluster]:
    """A manager and two workers, unless the test has another number, or options; kills and all end with the test."""
    wanted = getattr(request, "param", 2)
    workers, options = (2, wanted) if isinstance(wanted, list) else (wanted, None)
    found = RemoteCluster(tmp_path / "remote", workers, manager_options=options)
    yield found
    found.close()


@pytest.fixture
def harness(cluster: RemoteCluster) -> Iterator[RemoteHarness]:
    """An application that is patient."""
    found = RemoteHarness(cluster, "faults", PATIENT)
    yield found
    found.close()


@pytest.fixture
def exchange(harness: RemoteHarness) -> Iterator[ConformanceExchange]:
    """The suite's workbench."""
    workbench = ConformanceExchange(harness, asyncio.run)
    yield workbench
    workbench.close()


@pytest.fixture
def guest(shared: RemoteCluster) -> Iterator[RemoteHarness]:
    """A patient application of the shared service."""
    found = RemoteHarness(shared, "faults", PATIENT)
    yield found
    found.close()


@pytest.fixture
def guests_exchange(guest: RemoteHarness) -> Iterator[ConformanceExchange]:
    """Its workbench."""
    workbench = ConformanceExchange(guest, asyncio.run)
    yield workbench
    workbench.close()


ExchangeLater = Callable[[], ConformanceExchange]


@pytest.fixture
def exchange_later(cluster: RemoteCluster) -> Iterator[ExchangeLater]:
    """A workbench that is made when there are workers."""
    made: list[tuple[RemoteHarness, ConformanceExchange]] = []

    def make() -> ConformanceExchange:
        harness = RemoteHarness(cluster, "faults", PATIENT)
        made.append((harness, ConformanceExchange(harness, asyncio.run)))
        return made[-1][1]

    yield make
    for harness, exchange in made:
        exchange.close()
        harness.close()


def test_a_manager_that_is_killed_goes_on_where_it_was(cluster: RemoteCluster, exchange: ConformanceExchange) -> None:
    """Between two partitions, in the middle of one, and before it is read: nobody but time is lost."""
    done = written(exchange)
    under_way = exchange.produce(WantedPartition(KIND, subpartitions=4, index=1))
    write(under_way, BATCHES // 2)
    cluster.manager.kill()
    write(under_way, BATCHES, BATCHES // 2)
    finishing = Running(under_way.writer.finish)
    reading = Running(lambda: rows_left(exchange.consume([(done.descriptor, 0, 4)])))
    cluster.manager.start()
    finishing.join()
    assert reading.join() == ROWS * BATCHES
    assert rows_left(exchange.consume([(under_way.descriptor, 0, 4)])) == ROWS * BATCHES


@pytest.mark.parametrize("who", [with_all("manager"), "worker"])
def test_a_pause_is_waited_out(shared: RemoteCluster, guests_exchange: ConformanceExchange, who: str) -> None:
    """One that stands still while rows are pushed and read costs time and nothing else."""
    producer = written(guests_exchange)
    consumer = guests_exchange.consume([(producer.descriptor, 0, 4)])
    first = consumer.batch().num_rows
    process = shared.manager if who == "manager" else shared.workers[-1]
    process.tell(signal.SIGSTOP)
    try:
        rest = Running(lambda: rows_left(consumer))
        pushing = Running(lambda: written(guests_exchange, index=1))
        with suppress(AssertionError):  # it ends at once where all its files were given to the other worker
            pushing.join(PAUSE)
    finally:
        process.tell(signal.SIGCONT)
    assert first + int(str(rest.join())) == ROWS * BATCHES
    pushing.join()


def test_a_lost_worker_takes_what_had_rows_there_and_nothing_else(
    cluster: RemoteCluster, harness: RemoteHarness, exchange: ConformanceExchange
) -> None:
    """Killed in mid-data: its readers and writers hear of the loss, the others go on, and new files go elsewhere."""
    spread = written(exchange)
    consumer = exchange.consume([(spread.descriptor, 0, 4)])
    consumer.batch()
    one = exchange.produce(WantedPartition(KIND, subpartitions=4, index=1))
    one.writer.write(pa.record_batch([pa.array(range(ROWS), pa.int64())], schema=NUMBERS), 0)
    one.writer.finish()
    writing = exchange.produce(WantedPartition(KIND, subpartitions=4, index=2))
    write(writing, 8)
    (holder,) = harness.holders(one.descriptor.partition)
    next(worker for worker in cluster.workers if worker.address != holder).kill()
    with pytest.raises(PartitionLostError) as caught:
        rows_left(consumer)
    assert caught.value.partition == spread.descriptor.partition.to_wire()
    assert rows_left(exchange.consume([(one.descriptor, 0, 4)])) == ROWS
    with pytest.raises((PartitionLostError, StaleError)):
        end(writing)
    again = written(exchange)
    assert rows_left(exchange.consume([(again.descriptor, 0, 4)])) == ROWS * BATCHES


RESTARTS = ["--rejoin", "30s"]


@pytest.mark.parametrize("cluster", [RESTARTS], indirect=True)
def test_a_worker_that_is_started_again_serves_what_was_committed(
    cluster: RemoteCluster, exchange: ConformanceExchange
) -> None:
    """Under its name: a reader in mid-data goes on; what was being written there is there in full, or an error."""
    done = written(exchange)
    consumer = exchange.consume([(done.descriptor, 0, 4)])
    first = consumer.batch().num_rows
    writing = exchange.produce(WantedPartition(KIND, subpartitions=4, index=1))
    write(writing, 40)
    names = {line.split()[-3] for line in cluster.manager.log.read_text().splitlines() if " is there, at " in line}
    for worker in cluster.workers:
        worker.kill()
    reading = Running(lambda: rows_left(consumer))
    ending = Running(lambda: end(writing, 40))
    for worker in cluster.workers:
        worker.start()
    assert first + int(str(reading.join())) == ROWS * BATCHES
    try:
        ending.join()
        assert rows_left(exchange.consume([(writing.descriptor, 0, 4)])) == ROWS * BATCHES
    except (StorageError, IncompleteDataError, StaleError, PartitionLostError) as error:
        print(f"what was being written: {error!r}")
    again = {line.split()[-3] for line in cluster.manager.log.read_text().splitlines() if " is there, at " in line}
    assert names == again, "no worker has come under another name"
    late = written(exchange, 8, index=2)
    assert rows_left(exchange.consume([(late.descriptor, 0, 4)])) == ROWS * 8
    for path in cluster.files():
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
    with pytest.raises(IncompleteDataError, match="damaged"):
        rows_left(exchange.consume([(done.descriptor, 0, 4), (late.descriptor, 0, 4)]))


@pytest.mark.thorough
def test_a_kept_result_comes_back_with_its_worker(cluster: RemoteCluster) -> None:
    """The manager has lost the worker, the application is over, and what is under a name waits for it."""
    schema = pa.schema([("id", pa.int64())])
    options = {"key": cluster.keys.read_text().strip(), "conf": {"spark.penstock.remote.retryTimeout": "1s"}}
    with client.connect(cluster.manager.address, **options) as service, service.write("kept", schema, 2) as writer:
        writer.write(pa.record_batch([pa.array(range(ROWS))], schema=schema), partition=0)
        writer.write(pa.record_batch([pa.array(range(ROWS))], schema=schema), partition=1)
    for worker in cluster.workers:
        worker.kill()
    wait_until(lambda: cluster.manager.log.read_text().count(" is lost: ") == 2, "the manager to lose both")
    with client.connect(cluster.manager.address, **options) as service:
        with pytest.raises(PartitionLostError, match="is gone"):
            service.read("kept").read_all()
        for worker in cluster.workers:
            worker.start()

        def is_read() -> bool:
            try:
                return service.read("kept").read_all().num_rows == 2 * ROWS
            except PartitionLostError:
                return False

        wait_until(is_read, "the workers to be known again")


def end(producer: Producer, first: int = 8) -> None:
    """Write the rest, and finish."""
    write(producer, BATCHES, first)
    producer.writer.finish()


@pytest.fixture
def full_soon(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB: the blocks of `write` have about 15, compressed."""
    with small_disk(tmp_path / "disk", 8) as disk:
        yield disk


@pytest.mark.parametrize("cluster", [0], indirect=True)
def test_a_full_disk_moves_files_and_a_second_one_is_an_error(
    cluster: RemoteCluster, exchange_later: ExchangeLater, full_soon: Path
) -> None:
    """A file goes on at another worker, with all rows in order; where there is none, the task fails with that."""
    cluster.add_worker(full_soon / "files")
    exchange = exchange_later()
    producer = exchange.produce(WantedPartition(KIND))
    cluster.add_worker()
    column = pa.array(range(ROWS), pa.int64())
    for n in range(BATCHES):
        producer.writer.write(pa.record_batch([pc.add(column, n * ROWS)], schema=NUMBERS), 0)
    producer.writer.finish()
    assert all(listed(Path(worker.folder), "*.merged") for worker in cluster.workers)
    assert exchange.consume([(producer.descriptor, 0)]).values() == list(range(ROWS * BATCHES))
    cluster.workers[1].kill()
    with pytest.raises((NoStorageError, PartitionLostError), match=r"has room|is lost"):
        written(exchange, index=1)


def test_a_flipped_bit_on_the_disk_blames_its_producer(
    shared: RemoteCluster, guests_exchange: ConformanceExchange
) -> None:
    """Two producers' blocks are in one file: the one whose block is damaged is named, the other is read."""
    first, second = written(guests_exchange, 8), written(guests_exchange, 8, index=1)
    paths = shared.files()
    for path in paths:
        data = bytearray(path.read_bytes())
        data[len(data) - 100] ^= 1
        path.write_bytes(data)
    assert rows_left(guests_exchange.consume([(first.descriptor, 0, 4)])) == ROWS * 8
    for channels in ([(second.descriptor, 0, 4)], [(first.descriptor, 0, 4), (second.descriptor, 0, 4)]):
        with pytest.raises(IncompleteDataError, match="damaged") as caught:
            rows_left(guests_exchange.consume(channels))
        assert caught.value.partition == second.descriptor.partition.to_wire()


@pytest.mark.parametrize("cluster", [0], indirect=True)
def test_flipped_bits_on_the_wire_cost_a_block(cluster: RemoteCluster, exchange_later: ExchangeLater) -> None:
    """Wherever a bit flips between task and worker, there and back, all rows arrive: blocks go again."""
    proxy = FlippingProxy()
    worker = cluster.add_worker(options=["--advertise", proxy.address])
    proxy.target = ("127.0.0.1", worker.port)
    exchange = exchange_later()
    try:
        for index, place in enumerate(FLIPS):
            proxy.flip_at = (place, -1)
            producer = written(exchange, 32, index=index)
            proxy.flip_at = (-1, place)
            assert rows_left(exchange.consume([(producer.descriptor, 0, 4)])) == ROWS * 32
        assert proxy.flipped == 2 * len(FLIPS)
    finally:
        proxy.close()


@pytest.mark.thorough
def test_a_worker_that_is_told_to_end_serves_what_it_has(
    cluster: RemoteCluster, exchange: ConformanceExchange
) -> None:
    """It gets no new files, gives what it has to readers, and ends when that was released."""
    producer = written(exchange, 8)
    leaving = cluster.workers[0]
    leaving.tell(signal.SIGTERM)
    assert rows_left(exchange.consume([(producer.descriptor, 0, 4)])) == ROWS * 8
    assert leaving.process is not None
    assert leaving.process.poll() is None
    exchange.host("a").release_partitions_locally([producer.descriptor.partition])
    assert leaving.wait() == 0
    leaving.process = None
    assert rows_left(exchange.consume([(written(exchange, 8, index=1).descriptor, 0, 4)])) == ROWS * 8


def test_strangers_and_others_get_nothing(
    shared: RemoteCluster, guests_exchange: ConformanceExchange, guest: RemoteHarness, tmp_path: Path
) -> None:
    """A stranger without a key is refused; another application of the user sees no partition of this one."""
    producer = written(guests_exchange, 4)
    with pytest.raises(SettingError, match="keyFile"):
        RemoteShuffleService().create_shuffle_master(
            ShuffleMasterContext(
                "x", Settings.from_conf({"spark.penstock.remote.manager": shared.manager.address}), _ignore
            )
        )
    conf = {**guest.conf, "spark.penstock.access.user": "alice"}
    master = RemoteShuffleService().create_shuffle_master(
        ShuffleMasterContext("stranger", Settings.from_conf(conf), _ignore, os.urandom(32))
    )
    with pytest.raises(AuthenticationError, match="another secret"):
        asyncio.run(master.start())
    asyncio.run(master.close())
    other = RemoteHarness(shared, "another")
    theirs = ConformanceExchange(other, asyncio.run)
    try:
        with pytest.raises(PenstockError, match="was not produced"):
            theirs.consume([(producer.descriptor, 0, 4)]).next()
        theirs.host("a").release_partitions_locally([producer.descriptor.partition])
    finally:
        theirs.close()
        other.close()
    assert rows_left(guests_exchange.consume([(producer.descriptor, 0, 4)])) == ROWS * 4


def _ignore(_: BaseException) -> None:
    """Nobody asks."""
