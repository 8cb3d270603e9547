# SPDX-License-Identifier: Apache-2.0
"""Blocking partitions of real environment processes: what a reader is told, beside the producer and elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from effort import with_all
from local_harness import LocalHarness, idle_behind, started
from penstock.errors import (
    IncompleteDataError,
    PartitionExpiredError,
    PartitionLostError,
    PartitionReleasedError,
    PenstockError,
    ProducerFailedError,
    TaskCancelledError,
)
from penstock.link.calls import GetStatistics
from penstock.link.commands import ExpirePartitions
from penstock.settings import Settings
from penstock.shuffle import EndOfPartition, PartitionKind
from penstock.testing import DEADLINE
from penstock.testing.conformance_exchange import (
    ConformanceExchange,
    Producer,
    WantedPartition,
    ends_of,
    numbers,
    rows_of,
)
from penstock.testing.waiting import Running, wait_until
from underway import listed

pytestmark = pytest.mark.processes

KINDS = (PartitionKind.BLOCKING_HASH, PartitionKind.BLOCKING_SORT_MERGE)
READERS = ("a", "b")
"""Beside the producer, and on another host."""
LEAST = 1 << 20
"""Bytes that a sort-merge writer gets at the least."""
SEGMENT = Settings().network.segment_size
SUBPARTITIONS = 4


@pytest.fixture(scope="module")
def hosts() -> Iterator[LocalHarness]:
    """Two environment processes for all tests."""
    yield from started(LocalHarness("blocking-answers"))


@pytest.fixture
def harness(hosts: LocalHarness) -> Iterator[LocalHarness]:
    """The two, idle after the test."""
    yield from idle_behind(hosts)


@pytest.fixture
def exchange(harness: LocalHarness) -> Iterator[ConformanceExchange]:
    """The workbench; it sees to it that nothing stays occupied."""
    workbench = ConformanceExchange(harness, asyncio.run)
    yield workbench
    workbench.close()


def finished(exchange: ConformanceExchange, kind: PartitionKind, index: int = 0) -> Producer:
    """A partition with rows in the first and the last of its subpartitions."""
    producer = exchange.produce(WantedPartition(kind, subpartitions=SUBPARTITIONS, index=index))
    producer.writer.write(numbers(*range(5000)), 0)
    producer.writer.write(numbers(*range(5000)), SUBPARTITIONS - 1)
    producer.writer.finish()
    producer.writer.close()
    return producer


def folder_of(harness: LocalHarness, producer: Producer) -> Path:
    """The folder of a partition's files."""
    partition = producer.descriptor.partition
    name = f"{partition.dataset}.{partition.index}.{partition.attempt}"
    return harness.launch("a").place().folder / "results" / name


def answer(exchange: ConformanceExchange, producer: Producer, host: str) -> PenstockError:
    """The error that a reader of everything gets."""
    consumer = exchange.consume([(producer.descriptor, 0, SUBPARTITIONS)], host=host)
    with pytest.raises(PenstockError) as caught:
        consumer.drain()
    return caught.value


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
def test_each_end_is_an_answer_of_its_own(
    harness: LocalHarness, exchange: ConformanceExchange, kind: PartitionKind
) -> None:
    """Empty, released, expired, lost and failed are told apart by readers of both hosts, whatever the layout."""
    empty = exchange.produce(WantedPartition(kind, subpartitions=SUBPARTITIONS, index=0))
    empty.writer.finish()
    released, expired, lost, gone = (finished(exchange, kind, index) for index in range(1, 5))
    failed = exchange.produce(WantedPartition(kind, subpartitions=SUBPARTITIONS, index=5))
    failed.writer.close(ValueError("row 17 is bad"))
    view = exchange.host("a")
    view.release_partitions_locally([released.descriptor.partition])
    harness.commander("a").ask(ExpirePartitions((expired.descriptor.partition,)), DEADLINE)
    for producer in (lost, gone):
        for path in listed(folder_of(harness, producer)):
            path.unlink()
    for host in READERS:
        received = exchange.consume([(empty.descriptor, 0, SUBPARTITIONS)], host=host).drain()
        assert rows_of(received) == []
        assert ends_of(received)[0] == EndOfPartition(0, 0, 0)
        expected: list[tuple[Producer, type[PenstockError]]] = [
            (released, PartitionReleasedError),
            (expired, PartitionExpiredError),
            (lost if host == "a" else gone, PartitionLostError),
            (failed, ProducerFailedError),
        ]
        for producer, kind_of_answer in expected:
            error = answer(exchange, producer, host)
            assert type(error) is kind_of_answer, f"{host}: {error}"
            assert str(producer.descriptor.partition) in str(error)
            assert producer.descriptor.environment in str(error)
    assert type(answer(exchange, lost, "b")) is PartitionLostError
    assert view.partitions_occupying_local_resources() == [empty.descriptor.partition]
    wait_until(lambda: not folder_of(harness, lost).exists(), "the lost partition's folder to go")
    assert "row 17 is bad" in str(answer(exchange, failed, "b"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
def test_a_damaged_file_names_partition_attempt_host_and_file(
    harness: LocalHarness, exchange: ConformanceExchange, kind: PartitionKind
) -> None:
    """A flipped bit, and a cut, end in IncompleteDataError at the gate of either reader; other ranges are whole."""
    flipped, cut = finished(exchange, kind, 0), finished(exchange, kind, 1)
    name = "data.0"
    path = folder_of(harness, flipped) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    short = folder_of(harness, cut) / name
    short.write_bytes(short.read_bytes()[:-9])
    for host in READERS:
        for producer, file in ((flipped, path), (cut, short)):
            error = answer(exchange, producer, host)
            assert type(error) is IncompleteDataError, f"{host}: {error!r}"
            partition = producer.descriptor.partition
            for part in (str(partition), f"attempt {partition.attempt}", producer.descriptor.environment, str(file)):
                assert part in str(error)
        last = exchange.consume([(flipped.descriptor, SUBPARTITIONS - 1)], host=host)
        assert last.values() == list(range(5000))


def test_files_and_memory_come_back_and_are_reported(harness: LocalHarness, exchange: ConformanceExchange) -> None:
    """A partition occupies its host while it is written and when it is finished; two files however many readers."""
    kind = PartitionKind.BLOCKING_SORT_MERGE
    exchange.host("a")
    commander = harness.commander("a")
    before = commander.ask(GetStatistics(), DEADLINE).figures["segments_guaranteed"]
    producer = exchange.produce(WantedPartition(kind, subpartitions=1000))
    reserved = commander.ask(GetStatistics(), DEADLINE).figures["segments_guaranteed"] - before
    assert reserved == 7 * 128 // 8 // 8  # an eighth of what the whole of 128 segments leaves to sort buffers
    assert exchange.host("a").partitions_occupying_local_resources() == [producer.descriptor.partition]
    schema = pa.schema([("n", pa.int64())])
    row = pa.record_batch([pa.array([1], pa.int64())], schema=schema)
    for subpartition in range(1000):
        producer.writer.write(row, subpartition)
    producer.writer.broadcast(numbers(*range(500)))
    producer.writer.finish()
    assert commander.ask(GetStatistics(), DEADLINE).figures["segments_guaranteed"] == before
    assert sorted(path.name for path in listed(folder_of(harness, producer))) == ["data.0", "index"]
    size = sum(path.stat().st_size for path in listed(folder_of(harness, producer)))
    assert size < 1 << 20, "a broadcast batch is stored once"
    consumers = [exchange.consume([(producer.descriptor, first, 125)]) for first in range(0, 1000, 125)]
    rows = [sum(end.rows for end in ends_of(consumer.drain()).values()) for consumer in consumers]
    assert rows == [125 * 501] * 8
    exchange.host("a").release_partitions_locally([producer.descriptor.partition])
    wait_until(lambda: not folder_of(harness, producer).exists(), "the files to go")


def test_writers_share_the_memory_and_wait_where_there_is_none(
    harness: LocalHarness, exchange: ConformanceExchange
) -> None:
    """Some writers get all there is; the next waits for one to end, and another that is cancelled stops waiting."""
    kind = PartitionKind.BLOCKING_SORT_MERGE
    exchange.host("a")
    commander = harness.commander("a")
    writing: list[Producer] = []

    def left() -> float:
        figures = commander.ask(GetStatistics(), DEADLINE).figures
        return float(figures["segments_total"] * 7 // 8 - figures["segments_guaranteed"])

    while left() >= LEAST // SEGMENT:
        writing.append(exchange.produce(WantedPartition(kind, subpartitions=20, index=len(writing))))
    writing.append(exchange.prepare(WantedPartition(kind, subpartitions=20, index=len(writing))))
    setting_up = Running(writing[-1].writer.setup)
    figures = commander.ask(GetStatistics(), DEADLINE).figures
    assert figures["segments_guaranteed"] <= figures["segments_total"] * 7 / 8
    assert len(writing) > 20
    cancelled = exchange.prepare(WantedPartition(kind, subpartitions=20, index=len(writing)))
    waiting = Running(cancelled.writer.setup)
    wait_until(
        lambda: commander.ask(GetStatistics(), DEADLINE).figures["partitions"] == len(writing) + 1, "both to wait"
    )
    exchange.cancel(cancelled.owner)
    assert isinstance(waiting.outcome(), TaskCancelledError)
    assert setting_up.is_alive
    for producer in writing:
        setting_up.join() if producer is writing[-1] else None
        producer.writer.write(numbers(1), 19)
        producer.writer.finish()
    assert exchange.consume([(producer.descriptor, 0, 20) for producer in writing]).values() == [1] * len(writing)


@pytest.mark.parametrize("compression", ["lz4", with_all("zstd")])
def test_compressed_partitions_are_read_beside_and_elsewhere(
    request: pytest.FixtureRequest, compression: str
) -> None:
    """Both layouts, compressed, of numbers, texts and dictionaries: the same rows at either reader, fewer bytes."""
    harness = LocalHarness(request.node.name, {"spark.penstock.blocking.compression": compression})
    exchange = ConformanceExchange(harness, asyncio.run)
    columns = {
        "n": pa.array(range(20_000), pa.int64()),
        "s": pa.array([f"text {n % 100}" for n in range(20_000)]),
        "d": pa.array([f"word {n % 3}" for n in range(20_000)]).dictionary_encode(),
    }
    batch = pa.record_batch(columns)
    for index, kind in enumerate(KINDS):
        for schema in (batch.schema, batch.schema.remove(2)):
            producer = exchange.produce(WantedPartition(kind, schema, SUBPARTITIONS, index))
            for subpartition in (1, 2, 1):
                producer.writer.write(batch.select(schema.names), subpartition)
            end = producer.writer.finish()
            assert 0 < end.sizes[1] < batch.nbytes
            for host in READERS:
                received = exchange.consume([(producer.descriptor, 0, SUBPARTITIONS)], schema, host).drain()
                table = pa.Table.from_batches([item.batch for item in received if item.batch is not None])
                assert table.num_rows == 60_000
                expected = pa.Table.from_batches([batch.select(schema.names)] * 3)
                assert table.sort_by("n").to_pylist() == expected.sort_by("n").to_pylist()
    exchange.close()
    harness.close()
