# SPDX-License-Identifier: Apache-2.0
"""Faults of the processes that keep rows, each in the middle of writing or reading: right rows, or a typed error.

A seed says when a fault strikes, and which process of several. When it is over the same service must write and read
right rows again. `make test` runs some cells with one seed, `make torture` all with three (`PENSTOCK_FAULT_SEEDS`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from effort import THOROUGH
from ess_harness import EssHarness
from ess_process import EssProcess
from external_harness import ExternalHarness
from faulty_proxy import HANDSHAKE, FaultyProxy
from penstock.errors import PenstockError
from penstock.shuffle import PartitionKind
from penstock.testing import DEADLINE
from penstock.testing.conformance_exchange import NUMBERS, ConformanceExchange, WantedPartition
from penstock_torture.fault_cells import CELLS, GRID, GRID_CELLS, TABLES, FaultCell, as_table
from remote_cluster import RemoteCluster, RemoteProcess
from remote_harness import RemoteHarness
from slow_disks import slow_disk, slow_disk_of_java
from source import ROOT
from underway import listed

pytestmark = pytest.mark.processes

KIND = PartitionKind.BLOCKING_SORT_MERGE
ROWS = 1 << 15
BATCHES = 48
PARTS = 4
PAUSE = 20.0 if THOROUGH else 0.3
CUT = 1.0 if THOROUGH else 0.2
PATIENCE = "40s"
FIRST = int(os.environ.get("PENSTOCK_FAULT_SEED", "0"))
SEEDS = range(FIRST, FIRST + (int(os.environ.get("PENSTOCK_FAULT_SEEDS", "3")) if THOROUGH else 1))
SHORT = (
    "kill of worker",
    "split of worker",
    "duplicate push of worker",
    "reordered push of worker",
)
CHOSEN = [cell for cell in GRID_CELLS if THOROUGH or cell.name in SHORT]
ASKED = 400
"""The first bytes of a connection behind its handshake: in them somebody says which rows are wanted."""
ROWS_AT = (40_000, 100_000, 400_000, 1_100_000)
SMALL = {"spark.penstock.blocking.sortBuffer": "4m"}


class World:
    """A started service with an application, and ways to hurt its processes. `files` have its rows."""

    exchange: ConformanceExchange

    def __init__(self) -> None:
        self.processes: dict[str, list[RemoteProcess | EssProcess | SimpleNamespace]] = {}
        self.proxies: dict[str, list[FaultyProxy]] = {}
        self.partitions = 0
        self.timers: list[threading.Timer] = []
        self.ends: list[Callable[[], object]] = []
        self.files: Callable[[], list[Path]] = list

    def calm(self, cell: FaultCell) -> None:
        """Wait until a fault is over."""
        for timer in self.timers:
            timer.join(DEADLINE)
        self.timers.clear()
        for proxy in self.proxies[cell.process]:
            proxy.heal()

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do this in a while."""
        self.timers.append(threading.Timer(seconds, action))
        self.timers[-1].start()

    def hang_up(self) -> None:
        """Close all writers and readers; rows stay until the service is closed."""
        for member in self.exchange.members:
            member.close()

    def close(self) -> None:
        """End all of it."""
        with contextlib.ExitStack() as stack:
            for proxies in self.proxies.values():
                for proxy in proxies:
                    stack.callback(proxy.close)
            for end in self.ends:
                stack.callback(end)


def remote_world(folder: Path) -> World:
    """A manager and two workers, each reached through a proxy."""
    world = World()
    cluster = RemoteCluster(folder, 0, manager_options=["--rejoin", "30s"])
    world.ends.append(cluster.close)
    through_manager = FaultyProxy(cluster.manager.port)
    world.processes["manager"], world.processes["worker"] = [cluster.manager], []
    world.proxies["manager"], world.proxies["worker"] = [through_manager], []
    for _ in range(2):
        proxy = FaultyProxy(0)
        worker = cluster.add_worker(options=["--advertise", proxy.address])
        proxy.target = worker.port
        world.processes["worker"].append(worker)
        world.proxies["worker"].append(proxy)
    conf = {"spark.penstock.remote.manager": through_manager.address, "spark.penstock.remote.retryTimeout": PATIENCE}
    harness = RemoteHarness(cluster, "grid", {**conf, **SMALL})
    world.exchange = ConformanceExchange(harness, asyncio.run)
    world.files = cluster.files
    world.ends += [harness.close, world.exchange.close]
    return world


def external_world(folder: Path) -> World:
    """One host service, whose readers come through a proxy."""
    world = World()
    harness = ExternalHarness(folder, "grid", hosts=("a",))
    harness.conf |= {"spark.penstock.external.retryTimeout": PATIENCE, **SMALL}
    service = harness.host("a")
    proxy = FaultyProxy(service.port)
    harness.master.hosts = {"a": SimpleNamespace(port=proxy.port)}  # type: ignore[dict-item]
    world.processes["external"], world.proxies["external"] = [service], [proxy]  # type: ignore[list-item]
    world.exchange = ConformanceExchange(harness, asyncio.run)
    world.files = lambda: [folder / "data.0" for folder in service.folders()]
    world.ends += [lambda: [each.close() for each in harness.hosts.values()], world.hang_up]
    return world


def ess_world(folder: Path) -> World:
    """Spark's shuffle service, reached through a proxy."""
    world = World()
    process = EssProcess(folder)
    world.ends.append(process.close)
    proxy = FaultyProxy(process.port)
    harness = EssHarness(process, "grid", {"spark.penstock.ess.retryTimeout": PATIENCE, **SMALL})
    harness.ports["a"] = proxy.port
    world.processes["ess"], world.proxies["ess"] = [process], [proxy]
    world.exchange = ConformanceExchange(harness, asyncio.run)
    world.files = lambda: listed(harness.folder("a"), "**/*.data")
    world.ends += [harness.close, world.exchange.close]
    return world


WORLDS = {"manager": remote_world, "worker": remote_world, "external": external_world, "ess": ess_world}


def values(number: int) -> pa.RecordBatch:
    """The rows of one batch; no two batches have one in common."""
    return pa.record_batch([pc.add(pa.array(range(ROWS), pa.int64()), number * ROWS)], schema=NUMBERS)


def round_trip(world: World, at: Callable[[str, int], None]) -> None:
    """Write a partition and read it; AssertionError for other rows than were written."""
    exchange, world.partitions = world.exchange, world.partitions + 1
    producer = exchange.produce(WantedPartition(KIND, subpartitions=PARTS, index=world.partitions))
    for number in range(BATCHES):
        at("writing", number)
        producer.writer.write(values(number), number % PARTS)
    at("writing", BATCHES)
    producer.writer.finish()
    at("reading", 0)
    consumer = exchange.consume([(producer.descriptor, 0, PARTS)])
    total = rows = 0
    for item in consumer.drain():
        if item.batch is not None:
            at("reading", 1)
            rows += item.batch.num_rows
            total += pc.sum(item.batch.column(0)).as_py()
    assert (rows, total) == (ROWS * BATCHES, sum(range(ROWS * BATCHES)))


def strike(world: World, cell: FaultCell, chance: random.Random) -> None:
    """Make a fault, which ends by itself."""
    number = chance.randrange(len(world.processes[cell.process]))
    process, proxy = world.processes[cell.process][number], world.proxies[cell.process][number]
    match cell.fault:
        case "kill":
            process.kill()
            world.later(0.1, process.start)
        case "pause":
            pid = process.pid
            os.kill(pid, signal.SIGSTOP)
            world.later(PAUSE, lambda: os.kill(pid, signal.SIGCONT))
        case "split":
            proxy.cut()
            world.later(CUT, proxy.heal)
        case "bit flip on disk":
            for path in world.files():
                with path.open("r+b") as file:
                    file.seek(chance.randrange(max(1, path.stat().st_size)))
                    byte = file.read(1) or b"\0"
                    file.seek(-1, 1)
                    file.write(bytes([byte[0] ^ 8]))


def arm(world: World, cell: FaultCell, chance: random.Random) -> None:
    """Tell the proxies of what is to go wrong on the wire."""
    for proxy in world.proxies[cell.process]:
        match cell.fault:
            case "bit flip on the wire":
                place = HANDSHAKE + chance.randrange(ASKED) if chance.random() < 0.6 else chance.choice(ROWS_AT)
                proxy.flip(chance.randrange(2), place, 1 << chance.randrange(8))
            case "duplicate push":
                proxy.disturb("twice")
            case "reordered push":
                proxy.disturb("late")


SERVICES = list(dict.fromkeys((WORLDS[cell.process], cell.fault == "slow disk") for cell in CHOSEN))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("make", "is_slow"), SERVICES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_right_rows_or_a_typed_error(
    make: Callable[[Path], World], is_slow: bool, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each cell of a service, one after the other; and right rows afterwards."""
    slow = slow_disk_of_java if make is ess_world else slow_disk
    for name, value in slow(tmp_path / "slow", 0.02).items() if is_slow else ():
        monkeypatch.setenv(name, value)
    world = make(tmp_path / "service")
    try:
        for cell in CHOSEN:
            if (WORLDS[cell.process], cell.fault == "slow disk") == (make, is_slow):
                run_cell(world, cell, seed)
    finally:
        world.close()


def run_cell(world: World, cell: FaultCell, seed: int) -> None:
    """One fault, at a moment of the seed's."""
    chance = random.Random(f"{seed} {cell.name}")
    phase = chance.choice(("writing", "reading"))
    place = chance.randrange(8, BATCHES) if phase == "writing" else chance.randrange(2)
    if cell.fault == "bit flip on disk":
        phase, place = "reading", 0  # before that it may be nowhere yet, and after it in memory already
    begun: list[str] = []

    def at(now: str, number: int) -> None:
        if not begun and (now, number) == (phase, place):
            begun.append(now)
            strike(world, cell, chance)

    arm(world, cell, chance)
    outcome, began = "right rows", time.monotonic()
    try:
        round_trip(world, at)
    except PenstockError as error:
        outcome = f"{type(error).__name__}: {str(error)[:200]}"
    seconds = time.monotonic() - began
    struck = f"{phase} {place}" if begun else "not struck"
    print(f"{cell.name}, seed {seed}, {struck}, {seconds:.1f} s: {outcome}")
    world.calm(cell)
    round_trip(world, lambda _, __: None)


def test_the_page_shows_the_table() -> None:
    """`docs/testing.md` has the cells as the grid has them, and each test that it names is there."""
    page = (ROOT / "docs" / "testing.md").read_text()
    assert page.partition("<!-- faults:start -->\n")[2].partition("<!-- faults:end -->")[0] == as_table()
    assert {cell.fault for cell in CELLS} == {fault for faults, _ in TABLES for fault in faults}
    for cell in CELLS:
        if cell.where != GRID:
            path, _, name = cell.where.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), cell
