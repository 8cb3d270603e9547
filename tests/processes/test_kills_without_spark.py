# SPDX-License-Identifier: Apache-2.0
"""Tasks of a real environment process killed without Spark: what they held comes back, their readers are told.

Each task is a process of its own, killed with SIGKILL while it writes or reads; user code may have forked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from effort import with_all
from local_harness import LocalHarness
from penstock.link.calls import GetStatistics
from penstock.link.rendezvous import Rendezvous, base_folder, rendezvous, sweep
from penstock.testing import DEADLINE, wait_until

pytestmark = pytest.mark.processes

HOST = "one"

TASK = """
import os, sys, time
import pyarrow as pa
from penstock.attachment.attachment import attach
from penstock.attachment.launch import EnvironmentLaunch
from penstock.services.local.service import LocalShuffleService
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    DatasetId,
    InputGateDescriptor,
    MetricGroup,
    OwnerContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironmentContext,
)
from penstock.shuffle.splits import Split
from penstock.task.blocking import BlockingInput, BlockingWriter
role, application, secret, host, environment, address, forks = sys.argv[1:]
conf = {"spark.penstock.environment.leaseTimeout": "20s", "spark.penstock.network.memory": "64m"}
task = attach(EnvironmentLaunch(application, bytes.fromhex(secret), "", conf, host))
context = ShuffleEnvironmentContext(application, bytes.fromhex(secret), Settings.from_conf(conf), task)
local = LocalShuffleService().create_shuffle_environment(context)
schema = pa.schema([("id", pa.int64())])
producer = AttemptId("job", 0, 0, 1)
shuffle = ShuffleDescriptor(
    PartitionId(DatasetId("job", 0), 0, 1), "local", PartitionKind.PIPELINED_BOUNDED, environment, address)
if forks and os.fork() == 0:
    time.sleep(60)
    os._exit(0)
if role == "writer":
    owner = OwnerContext(producer, "writer", MetricGroup("w"))
    partition = PartitionDescriptor(DatasetId("job", 0), 0, PartitionKind.PIPELINED_BOUNDED, 1)
    (made,) = local.create_result_partition_writers(
        owner, [ResultPartitionDescriptor(partition, shuffle, schema)])
    writer = BlockingWriter(made, task, owner.metrics)
    writer.setup()
    batch = pa.RecordBatch.from_arrays([pa.array(range(10000), pa.int64())], schema=schema)
    print("ready", os.getpid(), flush=True)
    while True:
        writer.write(Split.whole(batch, 0))
        writer.flush()
else:
    owner = OwnerContext(AttemptId("job", 1, 0, 2), "reader", MetricGroup("r"))
    (gate,) = local.create_input_gates(
        owner, [InputGateDescriptor(0, schema, (ChannelDescriptor(shuffle, 0),))])
    gate.setup()
    rows = BlockingInput([gate], task)
    first = True
    try:
        while (received := rows.next()) is not None:
            if first:
                print("ready", os.getpid(), flush=True)
                first = False
    except Exception as error:
        print("error", type(error).__name__, str(error).replace(chr(10), " "), flush=True)
    else:
        print("end", flush=True)
"""


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[LocalHarness]:
    """One environment process."""
    harness = LocalHarness(request.node.name)
    harness.commander(HOST)
    yield harness
    harness.close()


@pytest.fixture
def task(harness: LocalHarness) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a task in a process group of its own; all groups are ended at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(role: str, forks: str = "") -> subprocess.Popen[str]:
        commander = harness.commander(HOST)
        arguments = [role, harness.application, harness.secret.hex(), HOST, commander.environment, commander.address]
        process = subprocess.Popen(
            [sys.executable, "-c", TASK, *arguments, forks], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE)
        assert process.stdout is not None
        process.stdout.close()


def line(process: subprocess.Popen[str]) -> str:
    """The next line a task prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_idle(harness: LocalHarness) -> float:
    """Wait until the environment holds nothing; the seconds it took."""
    began = time.monotonic()
    pause = threading.Event()
    while True:
        figures = harness.commander(HOST).ask(GetStatistics(), DEADLINE).figures
        # The harness itself is a task.
        if figures["segments_in_use"] == 0 and figures["tasks"] == 1:
            return time.monotonic() - began
        assert time.monotonic() - began < DEADLINE, figures
        pause.wait(0.01)


@pytest.mark.parametrize("forks", [with_all(""), "forks"])
def test_killed_writer(harness: LocalHarness, task: Callable[..., subprocess.Popen[str]], forks: str) -> None:
    """Its reader gets an error that names the producer, never a clean end; all segments come back."""
    writer = task("writer", forks)
    assert line(writer).startswith("ready")
    reader = task("reader")
    assert line(reader).startswith("ready")
    os.kill(writer.pid, signal.SIGKILL)
    word = line(reader)
    assert word.startswith("error ProducerFailedError")
    assert "job-e0.0#1" in word
    assert wait_idle(harness) < DEADLINE


@pytest.mark.parametrize("forks", [with_all(""), "forks"])
def test_killed_reader(harness: LocalHarness, task: Callable[..., subprocess.Popen[str]], forks: str) -> None:
    """The segments that it held come back; its producer can end."""
    writer = task("writer")
    assert line(writer).startswith("ready")
    reader = task("reader", forks)
    assert line(reader).startswith("ready")
    os.kill(reader.pid, signal.SIGKILL)

    def tasks() -> int:
        return int(harness.commander(HOST).ask(GetStatistics(), DEADLINE).figures["tasks"])

    wait_until(lambda: tasks() <= 2, "the reader's session is gone")
    os.kill(writer.pid, signal.SIGKILL)
    assert wait_idle(harness) < DEADLINE


def test_killed_environment(harness: LocalHarness, task: Callable[..., subprocess.Popen[str]]) -> None:
    """Reader and writer are told at once, and its folder is swept by the next."""
    folder = rendezvous(harness.application, HOST).folder
    assert folder.exists()
    writer = task("writer")
    assert line(writer).startswith("ready")
    reader = task("reader")
    assert line(reader).startswith("ready")
    began = time.monotonic()
    harness.lose_environment(HOST)
    assert line(reader).startswith("error EnvironmentLostError")
    assert writer.wait(DEADLINE) == 1, "the writer went on into nothing"
    assert time.monotonic() - began < DEADLINE
    assert not folder.exists()


def test_stopped_task_holds_nobody_up(harness: LocalHarness, task: Callable[..., subprocess.Popen[str]]) -> None:
    """A task that hangs (SIGSTOP) keeps its segments and no more; others attach, and its death gives all back."""
    writer = task("writer")
    assert line(writer).startswith("ready")
    reader = task("reader")
    assert line(reader).startswith("ready")
    os.kill(reader.pid, signal.SIGSTOP)
    figures = harness.commander(HOST).ask(GetStatistics(), DEADLINE).figures
    assert figures["segments_in_use"] < figures["segments_total"]
    os.kill(reader.pid, signal.SIGKILL)
    os.kill(writer.pid, signal.SIGKILL)
    assert wait_idle(harness) < DEADLINE


LOCKED = """if True:
    import os, sys
    from penstock.link.rendezvous import Rendezvous, base_folder
    place = Rendezvous(base_folder() / f"killed-{os.getpid()}")
    place.make()
    assert place.take_lock() is not None
    (place.folder / "secret").write_text("y")
    print(place.folder, flush=True)
    sys.stdin.read()
"""


def test_folder_of_a_killed_process_is_swept() -> None:
    """A living process keeps its folder; a killed one's goes with the next sweep, and nothing else does."""
    mine = Rendezvous(base_folder() / f"living-{os.getpid()}")
    mine.make()
    lock = mine.take_lock()
    assert lock is not None
    other = subprocess.Popen([sys.executable, "-c", LOCKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with other:
        path = Path(line(other))
        sweep()
        assert (path / "secret").exists(), "it still lives"
        other.kill()
    sweep()
    assert not path.exists()
    assert mine.folder.exists()
    mine.remove()
    os.close(lock)
    assert not mine.folder.exists()
