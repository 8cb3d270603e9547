# SPDX-License-Identifier: Apache-2.0
"""Many producers of many subpartitions through one worker with little memory: nothing grows with their product."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from effort import THOROUGH
from penstock.shuffle import ShuffleDescriptor
from penstock.shuffle.splits import Split
from penstock.task.blocking import BlockingWriter
from penstock.testing.conformance import ConformanceExchange
from penstock.testing.conformance_exchange import NUMBERS, WantedPartition
from penstock.testing.waiting import wait_until
from remote_cluster import RemoteCluster, RemoteProcess
from remote_harness import RemoteHarness
from stored_rows import KIND

pytestmark = pytest.mark.processes

WRITERS, FILES = (2_000, 2_000) if THOROUGH else (12, 200)
MEMORY, BESIDE = 64, 64
"""MiB: `--memory`, and what a process may take beside that."""
REJOIN = 10.0
"""Seconds in which a worker that was killed must be back, or its partitions are lost."""
READERS = 10


def memory(process: RemoteProcess) -> int:
    """The most MiB that a process has had."""
    (line,) = [x for x in Path(f"/proc/{process.pid}/status").read_text().splitlines() if x.startswith("VmHWM")]
    return int(line.split()[1]) >> 10


def write(exchange: ConformanceExchange, index: int) -> ShuffleDescriptor:
    """A partition with a row for each subpartition: its own number and the subpartition's."""
    producer = exchange.produce(WantedPartition(KIND, subpartitions=FILES, index=index))
    batch = pa.record_batch([pa.array(range(index * FILES, (index + 1) * FILES), pa.int64())], schema=NUMBERS)
    writer = BlockingWriter(producer.raw, producer.waiting, producer.owner.metrics)
    writer.write(Split(batch, range(FILES), [1] * FILES))
    writer.finish()
    let_go(exchange)
    return producer.descriptor


def let_go(exchange: ConformanceExchange) -> None:
    """Close what a task had."""
    for those in (exchange.members, exchange._attached):
        for each in those:
            each.close()
        those.clear()  # type: ignore[attr-defined]


def read(exchange: ConformanceExchange, written: list[ShuffleDescriptor], subpartition: int) -> None:
    """One subpartition of all producers: a row of each."""
    consumer = exchange.consume([(each, subpartition) for each in written])
    found = sorted(consumer.values())
    let_go(exchange)
    assert found == [index * FILES + subpartition for index in range(len(written))]


def test_memory_and_return_of_a_worker_do_not_grow_with_blocks(tmp_path: Path) -> None:
    """Millions of blocks: it stays within its memory, is back in time, and readers get all rows before and after."""
    cluster = RemoteCluster(tmp_path / "remote", 1, ["--memory", f"{MEMORY}m"], ["--rejoin", f"{REJOIN:g}s"])
    (worker,) = cluster.workers
    with closing(cluster):
        harness = RemoteHarness(cluster, "many-blocks", {"spark.penstock.remote.requestTimeout": "60s"})
        with closing(harness), closing(ConformanceExchange(harness, asyncio.run)) as exchange:
            before, began = {each.log.stem: memory(each) for each in (cluster.manager, worker)}, time.monotonic()
            written = [write(exchange, index) for index in range(WRITERS)]
            wrote = time.monotonic() - began
            places = range(0, FILES, FILES // READERS)
            began = time.monotonic()
            for subpartition in places:
                read(exchange, written, subpartition)
            each_read = (time.monotonic() - began) / len(places)
            most = {each.log.stem: memory(each) for each in (cluster.manager, worker)}
            worker.kill()
            began = time.monotonic()
            worker.start()
            wait_until(lambda: cluster.times_known() == 2, "the manager to know it again")
            back = time.monotonic() - began
            for subpartition in places:
                read(exchange, written, subpartition + 1)
            most[worker.log.stem] = max(most[worker.log.stem], memory(worker))
            grown = {name: now - before[name] for name, now in most.items()}
            print(
                f"{WRITERS} x {FILES}: written in {wrote:.0f} s, a reader {each_read:.2f} s, back in {back:.1f} s,"
                f" MiB more: {grown}"
            )
            assert max(grown.values()) <= MEMORY + BESIDE, grown
