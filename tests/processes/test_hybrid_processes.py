# SPDX-License-Identifier: Apache-2.0
"""Hybrid partitions with real environment processes: ends, kills, full disks, damage, and memory that is short."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from effort import with_all
from local_harness import LocalHarness
from penstock.errors import (
    IncompleteDataError,
    PartitionLostError,
    PartitionReleasedError,
    PenstockError,
    ProducerFailedError,
    StorageError,
)
from penstock.link.calls import GetStatistics
from penstock.shuffle import DatasetId, PartitionId, PartitionKind, ShuffleDescriptor
from penstock.testing.conformance_exchange import ConformanceExchange, Producer, WantedPartition, ends_of, numbers
from penstock.testing.waiting import DEADLINE, wait_until
from task_process import TASK, kill, line
from underway import listed

pytestmark = pytest.mark.processes

HOST, OTHER = "a", "b"
HOSTS = pytest.mark.parametrize("host", [with_all(HOST), OTHER], ids=["beside", "elsewhere"])
KINDS = pytest.mark.parametrize(
    "kind", [PartitionKind.HYBRID_FULL, PartitionKind.HYBRID_SELECTIVE], ids=lambda kind: kind.label
)
FULL = PartitionKind.HYBRID_FULL
ROWS = 1 << 15
"""Rows of a batch of 256 KiB."""


@pytest.fixture
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    """Environments of sixteen segments, with a directory for their files that is empty after the application."""
    conf = {
        "spark.penstock.blocking.directories": str(tmp_path / "disk"),
        "spark.penstock.network.memory": "4m",
        "spark.penstock.network.segmentSize": "256k",
    }
    harness = LocalHarness(request.node.name, conf)
    yield harness
    harness.close()
    assert listed(tmp_path, "disk/*") == [], "files are left behind the application"


@pytest.fixture
def exchange(harness: LocalHarness) -> Iterator[ConformanceExchange]:
    """Producers and consumers in this process; every host holds nothing after the test."""
    exchange = ConformanceExchange(harness, asyncio.run)
    yield exchange
    exchange.close()


def batch(number: int) -> pa.RecordBatch:
    """A large batch of one number."""
    return numbers(*[number] * ROWS)


def fill(producer: Producer, batches: int, subpartitions: int = 2) -> None:
    """Write large batches in turn."""
    for number in range(batches):
        producer.writer.write(batch(number), number % subpartitions)


def finished(exchange: ConformanceExchange, kind: PartitionKind, batches: int = 60) -> Producer:
    """A partition of two subpartitions whose writer has ended."""
    producer = exchange.produce(WantedPartition(kind, subpartitions=2))
    fill(producer, batches)
    producer.writer.finish()
    producer.writer.close()
    producer.environment.close()
    return producer


def figures(harness: LocalHarness, host: str = HOST) -> dict[str, float]:
    """The figures that an environment tells of itself."""
    return harness.commander(host).ask(GetStatistics(), DEADLINE).figures


def files(tmp_path: Path) -> list[Path]:
    """All files of all partitions, by name."""
    return sorted(path for path in listed(tmp_path, "disk/**/*") if path.is_file())


@contextlib.contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """A limit for what this process, in which writers run, writes; as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # compiled modules would be cut off
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = writes_bytecode


def limit_files(harness: LocalHarness, size: int) -> None:
    """The same for what the environment writes. It has to be started with `whole_modules`."""
    resource.prlimit(harness.pid(HOST), resource.RLIMIT_FSIZE, (size, size))


@pytest.fixture
def whole_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started write no compiled modules, which the limit would cut off."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


def stored(exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path) -> Producer:
    """A finished partition that is wholly on the disk: what was in memory, what the writer stored, and the index."""
    producer = finished(exchange, FULL)
    wait_until(lambda: [path.name for path in files(tmp_path)] == ["data.0", "data.1", "index"], "the index")
    wait_until(lambda: figures(harness)["segments_in_use"] == 0, "memory to come back")
    return producer


@HOSTS
def test_a_finished_partition_needs_no_task_and_no_memory(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path, host: str
) -> None:
    """Its producer has detached, everything is in files, no segment is held, and it is read again and again."""
    producer = stored(exchange, harness, tmp_path)
    for _ in range(2):
        received = exchange.consume([(producer.descriptor, 0), (producer.descriptor, 1)], host=host).drain()
        assert sum(end.rows for end in ends_of(received).values()) == 60 * ROWS
    assert figures(harness)["hybrid_segments"] == 0
    assert figures(harness)["hybrid_spilled_bytes"] > 60 * 8 * ROWS


def test_a_selective_partition_that_fits_never_touches_the_disk(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path
) -> None:
    """A few batches stay in memory until they are read."""
    producer = finished(exchange, PartitionKind.HYBRID_SELECTIVE, 4)
    assert figures(harness)["hybrid_segments"] > 0
    received = exchange.consume([(producer.descriptor, 0), (producer.descriptor, 1)]).drain()
    assert sum(end.rows for end in ends_of(received).values()) == 4 * ROWS
    assert not files(tmp_path)


@KINDS
@HOSTS
def test_what_memory_has_no_room_for_the_writer_stores(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path, kind: PartitionKind, host: str
) -> None:
    """Four times the memory: rows come in order, early and late readers alike, from memory and from its own file."""
    producer = exchange.produce(WantedPartition(kind, subpartitions=2))
    early = exchange.consume([(producer.descriptor, 0)], host=host)
    fill(producer, 60)
    producer.writer.broadcast(batch(60))
    fill(producer, 4)
    producer.writer.finish()
    assert "data.1" in [path.name for path in files(tmp_path)]
    for subpartition in (0, 1):
        late = early if subpartition == 0 else exchange.consume([(producer.descriptor, subpartition)], host=host)
        batches = [each.batch for each in late.drain() if each.batch is not None]
        found = [each.column(0)[0].as_py() for each in batches]
        assert found == [*range(subpartition, 60, 2), 60, *range(subpartition, 4, 2)]
        assert all(each.num_rows == ROWS for each in batches)
    producer.writer.close()


def test_a_partition_that_is_not_read_settles(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path
) -> None:
    """It fits in memory; some time after its end it is stored, and its memory is free."""
    producer = finished(exchange, FULL, 4)
    assert figures(harness)["hybrid_segments"] > 0
    wait_until(lambda: [path.name for path in files(tmp_path)] == ["data.0", "index"], "the index")
    wait_until(lambda: figures(harness)["segments_in_use"] == 0, "memory to come back")
    received = exchange.consume([(producer.descriptor, 0, 2)], host=HOST).drain()
    assert ends_of(received)[0].rows == 4 * ROWS


def test_finished_data_gives_way_to_those_who_need_memory(
    exchange: ConformanceExchange, harness: LocalHarness
) -> None:
    """A selective partition that nobody reads holds most of the memory; the next writer gets it all the same."""
    waiting = finished(exchange, PartitionKind.HYBRID_SELECTIVE, 10)
    pipelined = exchange.produce(WantedPartition(PartitionKind.PIPELINED_BOUNDED, index=1, subpartitions=6))
    consumer = exchange.consume([(pipelined.descriptor, index) for index in range(6)], host=HOST)
    with exchange.running(lambda: (fill(pipelined, 30, 6), pipelined.writer.finish())):
        assert sum(end.rows for end in ends_of(consumer.drain()).values()) == 30 * ROWS
    received = exchange.consume([(waiting.descriptor, 0), (waiting.descriptor, 1)], host=HOST).drain()
    assert sum(end.rows for end in ends_of(received).values()) == 10 * ROWS
    wait_until(lambda: figures(harness)["segments_in_use"] == 0, "memory to come back")


@KINDS
def test_many_partitions_at_once_share_little_memory(
    exchange: ConformanceExchange, harness: LocalHarness, kind: PartitionKind
) -> None:
    """Six writers of forty subpartitions each, in sixteen segments: all write in turn, nobody waits for a reader."""
    producers = [exchange.produce(WantedPartition(kind, index=index, subpartitions=40)) for index in range(6)]
    for number in range(80):
        for producer in producers:
            producer.writer.write(numbers(*[number] * 1000), number % 40)
            producer.writer.flush()
    for producer in producers:
        producer.writer.finish()
        producer.writer.close()
    for producer in producers:
        received = exchange.consume([(producer.descriptor, 0, 40)], host=HOST).drain()
        assert ends_of(received)[0].rows == 80_000
    wait_until(lambda: figures(harness)["segments_in_use"] == 0 or kind is FULL, "memory to come back")


@KINDS
def test_a_writer_whose_share_has_shrunk_gives_up_what_it_has_too_much(
    exchange: ConformanceExchange, harness: LocalHarness, kind: PartitionKind
) -> None:
    """It holds much of the memory when others come, and has not heard where to store: a long message goes through."""
    first = exchange.produce(WantedPartition(kind, subpartitions=2))
    fill(first, 11)
    first.writer.flush()
    wait_until(lambda: figures(harness)["hybrid_segments"] >= 11, "all that is shipped")
    others = [exchange.produce(WantedPartition(kind, index=index, subpartitions=2)) for index in range(1, 5)]
    with exchange.running(lambda: first.writer.write(numbers(*range(6 * ROWS)), 0)):
        pass
    for producer in (first, *others):
        producer.writer.finish()
        producer.writer.close()
    received = exchange.consume([(first.descriptor, 0), (first.descriptor, 1)]).drain()
    assert sum(end.rows for end in ends_of(received).values()) == 17 * ROWS


def test_a_gate_of_many_channels_leaves_memory_to_others(
    exchange: ConformanceExchange, harness: LocalHarness
) -> None:
    """Forty channels to another host in sixteen segments: most have no buffers of their own; a writer starts too."""
    producers = [exchange.produce(WantedPartition(FULL, index=index, subpartitions=40)) for index in range(2)]
    for number in range(80):
        producers[number % 2].writer.write(batch(number), number // 2)
    for producer in producers:
        producer.writer.finish()
    sources = [(producer.descriptor, subpartition) for producer in producers for subpartition in range(20)]
    consumer = exchange.consume(sources, host=OTHER)
    beside = exchange.produce(WantedPartition(FULL, index=2, subpartitions=2, host=OTHER))
    received = consumer.drain()
    assert sum(end.rows for end in ends_of(received).values()) == 40 * ROWS
    guaranteed = figures(harness, OTHER)["segments_guaranteed"]
    assert guaranteed <= 16 // 2 + 3, "half of the memory to the gate, and the writer's"
    fill(beside, 4)
    beside.writer.finish()
    for producer in (*producers, beside):
        producer.writer.close()


@KINDS
def test_a_full_disk_fails_the_partition_its_producer_and_its_readers(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path, kind: PartitionKind
) -> None:
    """The producer's next write says where and what to set, the readers hear it, space and memory come back."""
    producer = exchange.produce(WantedPartition(kind, subpartitions=2))
    with (
        files_no_longer_than(1 << 20),
        pytest.raises(PenstockError, match=r"disk is full.*spark\.penstock\.blocking\.directories") as raised,
    ):
        fill(producer, 1000)
    assert str(tmp_path) in str(raised.value)
    producer.writer.close(raised.value)
    producer.writer.close()
    with pytest.raises(ProducerFailedError, match="disk is full"):
        exchange.consume([(producer.descriptor, 0)], host=HOST).drain()
    wait_until(lambda: not files(tmp_path), "the files to go")
    wait_until(lambda: figures(harness)["segments_in_use"] == 0, "memory to come back")


@pytest.mark.usefixtures("whole_modules")
def test_a_disk_that_is_full_for_the_environment_fails_the_writer(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path
) -> None:
    """Buffers that must leave memory can't be stored: the writer's next write says so, readers and files as above."""
    producer = exchange.produce(WantedPartition(FULL, subpartitions=2))
    limit_files(harness, 1 << 10)
    fill(producer, 4)
    producer.writer.flush()
    # These are guaranteed more than is left: the partition's buffers have to leave memory.
    beside = [
        exchange.produce(WantedPartition(PartitionKind.PIPELINED_BOUNDED, index=index)) for index in range(1, 7)
    ]
    with pytest.raises(StorageError, match=r"disk is full.*spark\.penstock\.blocking\.directories"):
        fill(producer, 1000)
    with pytest.raises(ProducerFailedError, match="disk is full"):
        exchange.consume([(producer.descriptor, 0)], host=HOST).drain()
    for pipelined in beside:
        pipelined.writer.close(RuntimeError("the test is over"))
    wait_until(lambda: not files(tmp_path), "the files to go")


@pytest.mark.usefixtures("whole_modules")
def test_a_disk_that_is_full_behind_the_finish_loses_the_partition(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path
) -> None:
    """The producer has ended well, but its data can't be kept: readers are told that it is lost, and why."""
    producer = exchange.produce(WantedPartition(FULL, subpartitions=2))
    fill(producer, 4)
    producer.writer.flush()
    limit_files(harness, 8192)
    producer.writer.finish()
    wait_until(lambda: not figures(harness)["partitions"], "the partition to be lost")
    with pytest.raises((PartitionLostError, ProducerFailedError), match="disk is full"):
        exchange.consume([(producer.descriptor, 0)], host=HOST).drain()
    assert not files(tmp_path)


@HOSTS
@pytest.mark.parametrize("name", ["data.0", with_all("data.1"), "index"])
def test_damage_is_an_error_that_says_where(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path, host: str, name: str
) -> None:
    """A flipped bit or a cut in either file is never other rows; the error names partition, attempt, host, file."""
    producer = stored(exchange, harness, tmp_path)
    path = next(path for path in files(tmp_path) if path.name == name)
    whole = path.read_bytes()
    for damaged in (
        _flipped(whole, len(whole) // 2),
        _flipped(whole, len(whole) - 200),
        whole[: len(whole) * 2 // 3],
    ):
        replacement = path.with_name("replacement")
        replacement.write_bytes(damaged)
        replacement.replace(path)
        with pytest.raises(IncompleteDataError) as raised:
            exchange.consume([(producer.descriptor, 0, 2)], host=host).drain()
        identity = producer.descriptor.partition
        for part in (str(identity), f"attempt {identity.attempt}", harness.commander(HOST).environment, str(path)):
            assert part in str(raised.value)
    path.write_bytes(whole)
    assert ends_of(exchange.consume([(producer.descriptor, 0, 2)], host=host).drain())[0].rows == 60 * ROWS


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@HOSTS
@pytest.mark.parametrize("name", [with_all("data.0"), "data.1", with_all("index")])
def test_a_missing_file_loses_the_partition_for_everybody(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path, host: str, name: str
) -> None:
    """The first reader that finds it gone tells the environment."""
    producer = stored(exchange, harness, tmp_path)
    next(path for path in files(tmp_path) if path.name == name).unlink()
    for reader in (host, HOST):
        with pytest.raises(PartitionLostError, match=name):
            exchange.consume([(producer.descriptor, 0, 2)], host=reader).drain()


def test_a_release_in_mid_read_is_told(exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path) -> None:
    """A reader of a partition that is still being written hears of the release; files and memory go."""
    producer = exchange.produce(WantedPartition(FULL, subpartitions=2))
    consumers = [exchange.consume([(producer.descriptor, 0)], host=host) for host in (HOST, OTHER)]
    fill(producer, 60)
    for consumer in consumers:
        consumer.batch()
    exchange.host(HOST).release_partitions_locally([producer.descriptor.partition])
    for consumer in consumers:
        with pytest.raises(PartitionReleasedError):
            consumer.drain()
    fill(producer, 60)  # into the void
    wait_until(lambda: not files(tmp_path), "the files to go")


@KINDS
def test_a_killed_writers_partition_goes(
    exchange: ConformanceExchange, harness: LocalHarness, tmp_path: Path, kind: PartitionKind
) -> None:
    """Files that its process had written are removed, memory comes back, and a reader is told."""
    commander = harness.commander(HOST)
    arguments = ["2000", harness.application, harness.secret.hex(), HOST, commander.environment, commander.address]
    writer = subprocess.Popen(
        [sys.executable, "-c", TASK, *arguments, kind.label, "50", "0", json.dumps(harness.conf)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert line(writer) == "begun"
        wait_until(lambda: bool(files(tmp_path)), "something to be stored")
        writer.kill()
        partition = PartitionId(DatasetId("job", 0), 0, 1)
        descriptor = ShuffleDescriptor(partition, "local", kind, commander.environment, commander.address)
        with pytest.raises(ProducerFailedError, match=r"job-e0\.0#1"):
            exchange.consume([(descriptor, 0)], host=HOST).drain()
    finally:
        writer.kill()
        writer.communicate(timeout=DEADLINE)
    wait_until(lambda: not files(tmp_path), "the files to go")
    wait_until(lambda: figures(harness)["segments_in_use"] == 0, "memory to come back")


def test_a_killed_environments_files_are_swept(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The next environment of this host removes what a killed one had stored."""
    conf = {"spark.penstock.blocking.directories": str(tmp_path / "disk"), "spark.penstock.network.memory": "4m"}
    doomed = LocalHarness(request.node.name, conf)
    exchange = ConformanceExchange(doomed, asyncio.run)
    fill(exchange.produce(WantedPartition(FULL, subpartitions=2)), 40)
    assert files(tmp_path)
    kill(doomed, HOST)
    assert files(tmp_path), "nobody was there to remove anything"
    other = LocalHarness(request.node.name + "-other")
    other.commander(HOST)
    assert not files(tmp_path)
    other.close()
    for member in [*exchange.members, *exchange._attached, *exchange._hosts.values(), doomed.commander(HOST)]:
        member.close()
    asyncio.run(doomed.master.close())
