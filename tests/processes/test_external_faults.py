# SPDX-License-Identifier: Apache-2.0
"""The host service killed, paused, full, damaged, asked by strangers: right rows, or an error that fits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from effort import THOROUGH, with_all
from external_harness import SECRET, ExternalHarness
from external_process import ExternalProcess
from faulty_proxy import HANDSHAKE
from flipping_proxy import FlippingProxy
from penstock.connection.frames import frame
from penstock.connection.handshake import Service, greeting
from penstock.errors import (
    IncompleteDataError,
    NoStorageError,
    PartitionLostError,
    PartitionNotProducedError,
    PartitionReleasedError,
    ProducerFailedError,
    ProtocolError,
    QuotaError,
    StaleError,
    StorageError,
    VersionError,
)
from penstock.external.keys import ApplicationKey
from penstock.external.requests import BeginPartition, EndApplication, FindRange, ListHeld
from penstock.services.external.client import call
from penstock.services.external.host_line import HostLine
from penstock.settings import Settings
from penstock.testing import DEADLINE
from penstock.testing.conformance import ShuffleServiceConformance
from penstock.testing.conformance_exchange import NUMBERS, ConformanceExchange, WantedPartition
from penstock.testing.waiting import Running, wait_until
from small_disks import small_disk
from stored_rows import BATCHES, KIND, ROWS, cut, flip, rows_left, written
from strangers import bad_connections

pytestmark = pytest.mark.processes

PAUSE = 20.0 if THOROUGH else 1.0
CLIENTS = 100 if THOROUGH else 4
STRANGERS = 10_000 if THOROUGH else 200
OLD_WORDS = struct.pack("<IBxH", 58, 1, 0) + b"as of version 9, whose frames had eight bytes more"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalHarness]:
    """One application, whose readers wait for a service as long as one takes to start."""
    harness = ExternalHarness(tmp_path_factory.mktemp("external"), "faults")
    harness.conf["spark.penstock.external.retryTimeout"] = "60s"
    yield harness
    harness.close()


@pytest.fixture
def exchange(hosts: ExternalHarness) -> Iterator[ConformanceExchange]:
    """The suite's workbench."""
    workbench = ConformanceExchange(hosts, asyncio.run)
    yield workbench
    workbench.close()
    hosts.forget_hosts()


def file_of(service: ExternalProcess) -> Path:
    """The data file of the only partition of a service."""
    (folder,) = service.folders()
    return folder / "data.0"


def limited(folder: Path, *options: str) -> tuple[ExternalHarness, ConformanceExchange]:
    """An application of its own at a service with limits."""
    harness = ExternalHarness(folder, "limited", b"a secret of the limited one", hosts=())
    harness.options["l"] = options
    return harness, ConformanceExchange(harness, asyncio.run)


def test_what_was_committed_is_served_after_any_end(tmp_path: Path) -> None:
    """Killed with bytes under way and started again: what was committed is read on, and no row comes twice.

    A partition that was being written then has failed, its files are swept, and another attempt has its own. Ended
    well and started once more, the service gives the same rows, and the driver's releases find their partitions.
    """
    harness, exchange = limited(tmp_path, "--reserve", "1m")
    harness.conf["spark.penstock.external.retryTimeout"] = "60s"
    service = harness.host("l")
    try:
        producer, half = written(exchange, host="l"), exchange.produce(WantedPartition(KIND, index=1, host="l"))
        consumer = exchange.consume([(producer.descriptor, 0, 4)])
        first = consumer.batch().num_rows
        service.kill()
        rest = Running(lambda: rows_left(consumer))
        assert len(service.folders()) == 2
        service.start()
        assert first + int(str(rest.join(DEADLINE))) == ROWS * BATCHES
        assert service.folders() == [file_of(service).parent]
        with pytest.raises(StorageError, match="has gone while a partition was written"):
            half.writer.finish()
        with pytest.raises(ProducerFailedError, match="ended while it was written"):
            exchange.consume([(half.descriptor, 0)]).drain()
        assert service.stop() == 0
        service.start()
        assert rows_left(exchange.consume([(producer.descriptor, 0, 4)])) == ROWS * BATCHES
        asyncio.run(harness.master.release_partition_externally(producer.descriptor))
        wait_until(lambda: not service.folders(), "the files to be removed")
    finally:
        exchange.close()
        harness.close()


def test_a_pause_is_waited_out(hosts: ExternalHarness, exchange: ConformanceExchange) -> None:
    """A service that stands still for less than the timeout costs time and nothing else."""
    service, producer = hosts.host("a"), written(exchange)
    consumer = exchange.consume([(producer.descriptor, 0, 4)])
    first = consumer.batch().num_rows
    service.pause()
    try:
        rest = Running(lambda: rows_left(consumer))
        with pytest.raises(AssertionError, match="did not end"):
            rest.join(PAUSE)
    finally:
        service.resume()
    assert first + int(str(rest.join())) == ROWS * BATCHES


def test_a_result_that_is_kept_by_name_outlives_its_application(tmp_path: Path) -> None:
    """Another application of the same user finds and reads it, after a restart too.

    A second one under the same name takes its place. The key of an application finds no partition of it.
    """
    harness, exchange = limited(tmp_path, "--reserve", "1m")
    later = ExternalHarness(tmp_path / "later", "later", b"the secret of a later one", hosts=())
    later.hosts["l"] = service = harness.host("l")
    for each in (harness, later):
        each.master._settings = Settings.from_conf(
            {**each.conf, "spark.penstock.external.socket": str(service.socket)}
        )
    reader = ConformanceExchange(later, asyncio.run)
    try:
        first, second = written(exchange, 1, host="l"), written(exchange, 2, host="l")
        schema = NUMBERS.serialize().to_pybytes()
        for producer in (first, second):
            asyncio.run(harness.master.keep_result("numbers", schema, [producer.descriptor]))
        wait_until(lambda: len(service.folders()) == 1, "the first one to go")
        asyncio.run(harness.master.close())
        assert service.stop() == 0
        service.start()
        found = asyncio.run(later.master.find_result("numbers"))
        assert found is not None
        assert found[0] == schema
        (kept,) = found[1]
        assert kept.location not in repr(kept)
        assert rows_left(reader.consume([(kept, 0, 4)], host="l")) == 2 * ROWS
        with pytest.raises(PartitionNotProducedError):
            reader.consume([(dataclasses.replace(kept, location=""), 0)], host="l").drain()
        assert asyncio.run(later.master.find_result("others")) is None
        for member in reader.members:
            member.close()
        call(ApplicationKey("", bytes.fromhex(kept.location)), kept.address, [EndApplication()], 30.0)
        assert asyncio.run(later.master.find_result("numbers")) is None
    finally:
        exchange.close()
        harness.close()


@pytest.mark.parametrize(
    ("damage", "name", "error"),
    [
        (flip, "data.0", IncompleteDataError),
        (flip, "index", IncompleteDataError),
        (flip, "ends", IncompleteDataError),
        (cut, "data.0", IncompleteDataError),
        (Path.unlink, "data.0", PartitionLostError),
        (Path.unlink, "index", PartitionLostError),
    ],
)
def test_damage_is_found(
    hosts: ExternalHarness,
    exchange: ConformanceExchange,
    damage: Callable[[Path], object],
    name: str,
    error: type[Exception],
) -> None:
    """A flipped bit, a file that was cut or removed: an error that names the partition, and no wrong row."""
    producer = written(exchange, 8)
    damage(file_of(hosts.host("a")).with_name(name))
    with pytest.raises(error) as caught:
        rows_left(exchange.consume([(producer.descriptor, 0, 4)]))
    assert getattr(caught.value, "partition", None) == producer.descriptor.partition.to_wire()


def test_an_application_gets_nothing_of_another(hosts: ExternalHarness, exchange: ConformanceExchange) -> None:
    """One that is known asks for a foreign partition by its name, and finds none; one that is not is not let in."""
    producer, service = written(exchange, 1), hosts.host("a")
    address, partition = producer.descriptor.address, producer.descriptor.partition
    other = ApplicationKey.of("another", b"another secret of some length")
    with pytest.raises(ConnectionError, match="does not know this application"):
        call(other, address, [FindRange(partition, 0, 1)], 5.0)
    line = HostLine(str(service.socket), other, 5.0, lambda: None)
    try:
        found, held = call(other, address, [FindRange(partition, 0, 1), ListHeld()], 5.0)
        assert (found.state, held.partitions) == ("absent", ())
        (held,) = call(ApplicationKey.of("faults", SECRET), address, [ListHeld()], 5.0)
        assert held.partitions == (partition,)
    finally:
        line.close()


def test_strangers_cost_nothing(hosts: ExternalHarness, exchange: ConformanceExchange) -> None:
    """Bad connections by the hundred: the service takes no memory for them, and serves its own meanwhile."""
    import psutil

    service, producer = hosts.host("a"), written(exchange, 1)
    process = psutil.Process(service.pid)
    before, descriptors = process.memory_info().rss, process.num_fds()
    bad_connections(service.port, STRANGERS, Service.EXTERNAL)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(service.socket))
        stranger.sendall(greeting() + frame(1, b"no call"))
        assert stranger.recv(100) == greeting()
        assert stranger.recv(1) == b""
    assert rows_left(exchange.consume([(producer.descriptor, 0, 4)])) == ROWS
    wait_until(lambda: process.num_fds() <= descriptors + 2, "the connections to be closed")
    assert process.memory_info().rss - before < 16 << 20


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (greeting()[:-1] + b"\x63", "speaks version 99 of the protocol, this Penstock speaks"),
        (OLD_WORDS, "does not say which version of the protocol it speaks"),
        (greeting() + bytes(40), "has come damaged"),
    ],
    ids=["another version", "one without a greeting", "no frame"],
)
def test_why_a_task_is_refused_is_in_the_log(hosts: ExternalHarness, words: bytes, told: str) -> None:
    """The service says its own version to everybody, and then closes."""
    service = hosts.host("a")
    begin = service.log.stat().st_size

    def is_logged() -> bool:
        """Refusals of one second share a line, so they are tried again."""
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(service.socket))
            stranger.sendall(words)
            assert stranger.recv(100) == greeting()
            with contextlib.suppress(ConnectionResetError):  # it had said more than was read
                assert stranger.recv(1) == b""
        return told in service.log.read_bytes()[begin:].decode()

    wait_until(is_logged, "the service to say why")


def test_many_refusals_are_few_lines(hosts: ExternalHarness) -> None:
    """Hundreds that say nothing of the protocol: any user of the host can make them, and would fill a disk."""
    service = hosts.host("a")
    begin, began = service.log.stat().st_size, time.monotonic()
    for _ in range(300):
        with socket.socket(socket.AF_UNIX) as stranger, contextlib.suppress(ConnectionResetError):
            stranger.connect(str(service.socket))
            stranger.sendall(OLD_WORDS)
            assert stranger.recv(100) == greeting()
            assert stranger.recv(1) == b""
    lines = service.log.read_bytes()[begin:].decode().count("refused a connection")
    assert lines <= 1 + (time.monotonic() - began)


def test_a_service_that_does_not_say_its_version(tmp_path: Path) -> None:
    """It hangs up, as one of an older Penstock does: the error says so, and that of another version names it."""
    path = tmp_path / "old.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        answers = [b"", b"", greeting()[:-1] + b"\x63", b"HTTP/1.1 400\r\n"]

        def serve() -> None:
            for answer in answers:
                connected, _ = listening.accept()
                connected.sendall(answer)
                connected.close()

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        key = ApplicationKey.of("new", SECRET)
        with pytest.raises(NoStorageError, match=r"old\.sock does not say which version .* another Penstock"):
            HostLine(str(path), key, 0.0, lambda: None)
        with pytest.raises(VersionError, match=r"old\.sock speaks version 99 of the protocol, this Penstock speaks"):
            HostLine(str(path), key, 5.0, lambda: None)
        with pytest.raises(ProtocolError, match=r"old\.sock does not say which version"):
            HostLine(str(path), key, 5.0, lambda: None)
        server.join()


def test_a_damaged_frame_is_asked_for_again(hosts: ExternalHarness, exchange: ConformanceExchange) -> None:
    """One bit of what the service answers turns: in a head, in an answer, in the head of bytes. All rows come."""
    proxy = FlippingProxy()
    try:
        for index, place in enumerate((2, 6, 12, 20, 60)):
            producer = written(exchange, 8, index=index)
            host, _, port = producer.descriptor.address.removeprefix("tcp://").rpartition(":")
            proxy.target = (host, int(port))
            proxy.flip_at = (-1, HANDSHAKE + place)
            there = dataclasses.replace(producer.descriptor, address=f"tcp://{proxy.address}")
            assert rows_left(exchange.consume([(there, 0, 4)])) == ROWS * 8
        assert proxy.flipped == 5
    finally:
        proxy.close()


def test_a_link_that_damages_all_answers_is_given_up(tmp_path: Path) -> None:
    """Its readers end with what came, when their patience does, and do not hammer at the service meanwhile."""
    harness = ExternalHarness(tmp_path, "damaged")
    harness.conf["spark.penstock.external.retryTimeout"] = "2s"
    exchange, proxy = ConformanceExchange(harness, asyncio.run), FlippingProxy(always=True)
    try:
        producer = written(exchange, 1)
        host, _, port = producer.descriptor.address.removeprefix("tcp://").rpartition(":")
        proxy.target = (host, int(port))
        proxy.flip_at = (-1, HANDSHAKE + 2)
        there = dataclasses.replace(producer.descriptor, address=f"tcp://{proxy.address}")
        with pytest.raises(PartitionLostError, match="has come damaged"):
            exchange.consume([(there, 0, 4)]).drain()
        assert 2 <= proxy.flipped <= 25
    finally:
        proxy.close()
        exchange.close()
        harness.close()


def test_a_host_without_a_service_says_so(tmp_path: Path) -> None:
    """A writer names the socket, the command and the setting; the engine tries another host."""
    path = str(tmp_path / "none.sock")
    with pytest.raises(NoStorageError, match=r"(?s)none\.sock.*penstock service external.*external\.socket"):
        HostLine(path, ApplicationKey.of("alone", SECRET), 0.1, lambda: None)


def test_limits_are_errors_that_say_what_to_do(tmp_path: Path) -> None:
    """A quota, and an application that nobody hears of: typed errors, and all files gone in the end."""
    harness, exchange = limited(tmp_path, "--quota", "80m", "--lease", "500ms")
    try:
        producer = exchange.produce(WantedPartition(KIND, host="l"))
        with pytest.raises(QuotaError, match=r"the application limited has [\d,]+ of the [\d,]+ .*--quota"):
            exchange.produce(WantedPartition(KIND, index=1, host="l"))
        producer.writer.finish()
        assert harness.host("l").folders()
        for member in exchange.members:
            member.close()
        wait_until(lambda: not harness.host("l").folders(), "the lease to end")
        with pytest.raises(PartitionLostError, match="does not know this application"):
            exchange.consume([(producer.descriptor, 0)]).drain()
    finally:
        exchange.close()
        harness.close()


@pytest.fixture
def full_soon(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    with small_disk(tmp_path / "disk", 16) as disk:
        yield disk


@pytest.mark.parametrize("reserve", [with_all("0"), "8m"])
def test_a_full_disk_fails_the_partition_and_frees_its_files(tmp_path: Path, full_soon: Path, reserve: str) -> None:
    """The task's error says what to do about the service's disk, readers hear the cause, and the next one fits."""
    harness, exchange = limited(tmp_path / "h", "--reserve", reserve)
    harness.folders["l"] = full_soon
    try:
        producer = exchange.produce(WantedPartition(KIND, host="l"))
        column = pa.array(range(ROWS), pa.int64())

        def overfill() -> None:
            for _ in range(BATCHES * 2):
                producer.writer.write(pa.record_batch([column], schema=NUMBERS), 0)
            producer.writer.finish()

        with pytest.raises(StorageError, match=r"--dir.*--reserve"):
            overfill()
        with pytest.raises(ProducerFailedError, match="StorageError"):
            exchange.consume([(producer.descriptor, 0)]).drain()
        wait_until(lambda: not harness.host("l").folders(), "the files to be removed")
        small = exchange.produce(WantedPartition(KIND, index=1, host="l"))
        small.writer.finish()
    finally:
        exchange.close()
        harness.close()


def test_a_late_writer_commits_nothing(hosts: ExternalHarness, exchange: ConformanceExchange) -> None:
    """One that was given up is refused, a second one of an attempt too; the next attempt's rows alone are read."""
    late, service = exchange.produce(WantedPartition(KIND, subpartitions=4)), hosts.host("a")
    partition, key = late.descriptor.partition, ApplicationKey.of("faults", SECRET)
    late.writer.write(pa.record_batch([pa.array(range(ROWS), pa.int64())], schema=NUMBERS), 0)
    line = HostLine(str(service.socket), key, 30.0, lambda: None)
    try:
        with pytest.raises(StaleError, match="was written, or given up, before"):
            line.begin(BeginPartition(partition, 4))
        asyncio.run(hosts.master.release_partition_externally(late.descriptor))
        with pytest.raises(StaleError, match="is not being written"):
            late.writer.finish()
        with pytest.raises(StaleError, match="was written, or given up, before"):
            line.begin(BeginPartition(partition, 4))
    finally:
        line.close()
    with pytest.raises(PartitionReleasedError):
        exchange.consume([(late.descriptor, 0, 4)]).drain()
    again = written(exchange, 4)
    assert again.descriptor.partition.attempt != partition.attempt
    assert rows_left(exchange.consume([(again.descriptor, 0, 4)])) == 4 * ROWS


CLIENT = """
import sys
from penstock.external.keys import ApplicationKey
from penstock.external.requests import *
from penstock.services.external.client import call
from penstock.services.external.host_line import HostLine
from penstock.shuffle import DatasetId, EndOfPartition, PartitionId
import os
path, address, name = sys.argv[1:]
key = ApplicationKey.of(name, name.encode() * 20)
line = HostLine(path, key, 60.0, lambda: None)
partition = PartitionId(DatasetId("job", 0), 0, 0)
begun, data, index = line.begin(BeginPartition(partition, 1))
os.write(data, os.urandom(1 << 20))
line.ask(CommitPartition(begun.number, (EndOfPartition(1, 1, 1),)))
line.close()
(held,) = call(key, address, [ListHeld()], 60.0)
assert held.partitions == (partition,)
call(key, address, [EndApplication()], 60.0)
"""


def test_many_applications_come_and_go(hosts: ExternalHarness) -> None:
    """They register, write and leave at once: nothing is left of them, and the service takes no memory for them."""
    import psutil

    service = hosts.host("b")
    before = psutil.Process(service.pid).memory_info().rss
    address = f"tcp://127.0.0.1:{service.port}"
    commands = [[sys.executable, "-c", CLIENT, str(service.socket), address, f"app{n}"] for n in range(CLIENTS)]
    clients = [subprocess.Popen(command) for command in commands]
    assert [client.wait(DEADLINE) for client in clients] == [0] * CLIENTS
    wait_until(lambda: not service.folders(), "the files to be removed")
    assert psutil.Process(service.pid).memory_info().rss - before < 24 << 20


assert ShuffleServiceConformance  # its module has assertions in the workbench rewritten
