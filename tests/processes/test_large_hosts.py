# SPDX-License-Identifier: Apache-2.0
"""Exchanges as wide as large hosts make them, on one host, with the least memory that is taken by default."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from effort import with_all
from local_harness import SHARED, LocalHarness, idle_behind, started
from penstock.settings import LEAST_MEMORY
from penstock.shuffle import PartitionKind
from penstock.testing.conformance_exchange import ConformanceExchange, WantedPartition, numbers

HOST = SHARED[0]
CHANNELS = 1600
"""As many a gate reads at the most here."""


def call(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of the coroutine."""
    return asyncio.run(work)


@pytest.fixture(scope="module")
def hosts() -> Iterator[LocalHarness]:
    """An application whose environments have the least memory by default."""
    yield from started(LocalHarness("large-hosts", {"spark.penstock.network.memory": str(LEAST_MEMORY)}))


@pytest.fixture
def harness(hosts: LocalHarness) -> Iterator[LocalHarness]:
    """It, idle after the test."""
    yield from idle_behind(hosts)


PIPELINED, HYBRID = PartitionKind.PIPELINED_BOUNDED, PartitionKind.HYBRID_FULL


@pytest.mark.parametrize(
    ("kind", "writers", "subpartitions"),
    [
        (PIPELINED, 48, 24),
        with_all(PIPELINED, 64, 64),
        with_all(PIPELINED, 128, 128),
        (PIPELINED, 16, 1000),
        with_all(HYBRID, 64, 64),
    ],
)
def test_wide_exchanges_fit(harness: LocalHarness, kind: PartitionKind, writers: int, subpartitions: int) -> None:
    """All writers at once, none is refused; each row comes out at its subpartition, once."""
    exchange = ConformanceExchange(harness, call)
    producers = [
        exchange.produce(WantedPartition(kind, subpartitions=subpartitions, index=index, host=HOST))
        for index in range(writers)
    ]
    for index, producer in enumerate(producers):
        for subpartition in range(subpartitions):
            producer.writer.write(numbers(index * subpartitions + subpartition), subpartition)
        producer.writer.finish()
    a_time = CHANNELS // writers
    for first in range(0, subpartitions, a_time):
        chosen = range(first, min(first + a_time, subpartitions))
        sources = [(producer.descriptor, subpartition) for producer in producers for subpartition in chosen]
        found = exchange.consume(sources, host=HOST).values()
        assert sorted(found) == sorted(index * subpartitions + each for index in range(writers) for each in chosen)
    exchange.close()


def test_a_packed_writer_waits_for_its_readers(harness: LocalHarness) -> None:
    """More rows than memory holds, to subpartitions that share segments: it goes on as they are read, row for row."""
    exchange = ConformanceExchange(harness, call)
    subpartitions, batches, rows = 200, 4, 40_000
    producer = exchange.produce(WantedPartition(PIPELINED, subpartitions=subpartitions, host=HOST))
    batch = numbers(*range(rows))
    assert subpartitions * batches * batch.nbytes >= LEAST_MEMORY * 15 // 16

    def write() -> None:
        for _ in range(batches):
            for subpartition in range(subpartitions):
                producer.writer.write(batch, subpartition)
        producer.writer.finish()

    consumer = exchange.consume([(producer.descriptor, each) for each in range(subpartitions)], host=HOST)
    with exchange.running(write):
        received = consumer.drain()
    counts = [0] * subpartitions
    for item in received:
        if item.batch is not None:
            counts[item.channel] += item.batch.num_rows
    assert counts == [batches * rows] * subpartitions
    exchange.close()
