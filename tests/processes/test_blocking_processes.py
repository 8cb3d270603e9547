# SPDX-License-Identifier: Apache-2.0
"""Blocking partitions and processes that end: in good order, killed, and out of disk space. Without Spark.

Each task is a process of its own. A partition that a producer has finished outlives it; one that it had begun goes
with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from effort import some_of
from local_harness import LocalHarness
from penstock.errors import ProducerFailedError
from penstock.link.calls import GetStatistics
from penstock.shuffle import DatasetId, PartitionId, PartitionKind, ShuffleDescriptor
from penstock.testing import DEADLINE
from penstock.testing.conformance_exchange import ConformanceExchange, WantedPartition
from penstock.testing.waiting import wait_until
from task_process import TASK, kill, line
from underway import listed

pytestmark = pytest.mark.processes

HOST = "one"
ROWS = 200_000
SUBPARTITIONS = 50

KINDS = ("blocking_hash", "blocking_sort_merge")


@pytest.fixture
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalHarness]:
    """One environment process, with two directories for its files."""
    directories = f"{tmp_path / 'disk1'},{tmp_path / 'disk2'}"
    conf = {"spark.penstock.blocking.directories": directories, "spark.penstock.blocking.sortBuffer": "1m"}
    harness = LocalHarness(request.node.name, conf)
    harness.commander(HOST)
    yield harness
    harness.close()
    assert listed(tmp_path, "disk*/*") == [], "files are left behind the application"


@pytest.fixture
def task(harness: LocalHarness) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a task; all are ended at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(role: str, kind: str, limit: int = 0, host: str = HOST) -> subprocess.Popen[str]:
        commander = harness.commander(HOST)
        arguments = [role, harness.application, harness.secret.hex(), host, commander.environment, commander.address]
        arguments += [kind, str(SUBPARTITIONS), str(limit), json.dumps(harness.conf)]
        process = subprocess.Popen(
            [sys.executable, "-c", TASK, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate(timeout=DEADLINE)


def files(tmp_path: Path) -> list[Path]:
    """All files in the directories of the application, which an environment may be removing right now."""
    return [
        Path(folder) / name
        for disk in listed(tmp_path, "disk*")
        for folder, _, names in os.walk(disk)
        for name in names
    ]


def descriptor(harness: LocalHarness, kind: str) -> ShuffleDescriptor:
    """Of the partition the task writes."""
    commander = harness.commander(HOST)
    partition = PartitionId(DatasetId("job", 0), 0, 1)
    return ShuffleDescriptor(
        partition, "local", PartitionKind.from_label(kind), commander.environment, commander.address
    )


@pytest.mark.parametrize("kind", some_of(KINDS, 2))
def test_a_finished_producers_slot_is_free_while_its_partition_is_read(
    harness: LocalHarness, task: Callable[..., subprocess.Popen[str]], tmp_path: Path, kind: str
) -> None:
    """The producer's process has ended before the first reader's begins, on its host and on another."""
    producer = task("200", kind)
    assert line(producer) == "finished"
    assert producer.wait(DEADLINE) == 0
    harness.commander("two")
    for host in (HOST, "two", HOST):
        reader = task("reader", kind, host=host)
        assert line(reader) == f"rows {ROWS}"
        assert reader.wait(DEADLINE) == 0
    count = 2 if kind == "blocking_sort_merge" else SUBPARTITIONS + 1
    assert len(files(tmp_path)) == count


@pytest.mark.parametrize("kind", some_of(KINDS, 2))
def test_a_killed_writers_files_go(
    harness: LocalHarness, task: Callable[..., subprocess.Popen[str]], tmp_path: Path, kind: str
) -> None:
    """The files that it had begun are removed, temporary names included, memory comes back, and a reader is told."""
    writer = task("2000", kind)
    assert line(writer) == "begun"
    assert files(tmp_path)
    writer.kill()
    wait_until(lambda: not files(tmp_path), "the files to go")
    exchange = ConformanceExchange(harness, asyncio.run)
    with pytest.raises(ProducerFailedError, match=r"job-e0\.0#1"):
        exchange.consume([(descriptor(harness, kind), 0, SUBPARTITIONS)], host=HOST).next()
    exchange.close()
    figures = harness.commander(HOST).ask(GetStatistics(), DEADLINE).figures
    assert (figures["segments_guaranteed"], figures["partitions"]) == (0, 0)


@pytest.mark.parametrize("kind", some_of(KINDS, 2))
def test_a_full_disk_fails_the_partition_and_gives_the_space_back(
    harness: LocalHarness, task: Callable[..., subprocess.Popen[str]], tmp_path: Path, kind: str
) -> None:
    """The writer's error and the reader's say that the disk is full, where, and what to set."""
    writer = task("3000", kind, limit=300_000)
    word = line(writer)
    assert word.startswith("error StorageError")
    for part in ("disk is full", "job-e0.0#1", str(tmp_path), "spark.penstock.blocking.directories"):
        assert part in word
    wait_until(lambda: not files(tmp_path), "the files to go")
    exchange = ConformanceExchange(harness, asyncio.run)
    with pytest.raises(ProducerFailedError, match="disk is full"):
        exchange.consume([(descriptor(harness, kind), 0, SUBPARTITIONS)], host=HOST).next()
    exchange.close()


def test_after_a_kill_of_everything_the_next_environment_sweeps_all_directories(
    harness: LocalHarness, task: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A killed application's files go from every directory with the next start there; the living keep theirs."""
    assert line(task("200", "blocking_sort_merge")) == "finished"
    mine = sorted(files(tmp_path))
    doomed = LocalHarness(harness.application + "-doomed", harness.conf)
    exchange = ConformanceExchange(doomed, asyncio.run)
    for index in range(2):
        written = WantedPartition(PartitionKind.BLOCKING_SORT_MERGE, subpartitions=20, index=index, host="x")
        exchange.produce(written).writer.finish()
    assert len(files(tmp_path)) == len(mine) + 4
    assert {path.parents[2].name for path in set(files(tmp_path)) - set(mine)} == {"disk1", "disk2"}
    kill(doomed, "x")
    assert len(files(tmp_path)) == len(mine) + 4, "nobody was there to remove anything"
    other = LocalHarness(harness.application + "-other")
    other.commander("y")
    assert sorted(files(tmp_path)) == mine
    other.close()
    for member in [*exchange.members, *exchange._attached, *exchange._hosts.values(), doomed.commander("x")]:
        member.close()
    asyncio.run(doomed.master.close())
    assert line(task("reader", "blocking_sort_merge")) == f"rows {ROWS}"
