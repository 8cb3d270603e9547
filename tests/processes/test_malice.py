# SPDX-License-Identifier: Apache-2.0
"""An enemy asks all that can be asked of a service, in each way, and others notice little: *malice* of the grid.

The requests are the messages of the services, whichever there are (`malicious`). An enemy has a key, or is a user of
the host, and names the partition of another application; or he is a stranger. Meanwhile the other one writes and
reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import malicious
from effort import THOROUGH
from external_harness import ExternalHarness
from penstock.connection.principals import key_line
from penstock.testing.conformance_exchange import ConformanceExchange
from remote_cluster import RemoteCluster
from remote_harness import RemoteHarness
from witnesses import BESIDE, MEMORY, Witness

pytestmark = pytest.mark.processes

SIZES = {"external": [60_000, 250_000, 60 << 20], "remote": [60_000, 2 << 20 if THOROUGH else 250_000, 60 << 20]}
"""The bytes of a request at its largest: of a stranger, of a user, and of nobody."""
LINES, SECONDS = (100, 1.0) if THOROUGH else (4, 0.0)
NOBODY = 65534
PATIENCE = {"requestTimeout": "60s", "retryTimeout": "60s"}


@dataclass
class Attacked:
    """A service, somebody who uses it, and where an enemy finds it."""

    victim: Witness
    enemies: list[dict[str, Any]]
    ends: ExitStack


def external(folder: Path) -> Attacked:
    """The service of a host. The enemy is another user of it, where the tests are root's."""
    ends = ExitStack()
    place = Path(tempfile.mkdtemp(prefix="penstock-malice-"))  # which another user may enter
    ends.callback(shutil.rmtree, place)
    place.chmod(0o755)
    (place / "a").mkdir(mode=0o755)
    harness = ExternalHarness(place, "victim", hosts=())
    harness.options["a"] = ("--reserve", "1m", "--memory", f"{MEMORY}m")
    harness.conf |= {f"spark.penstock.external.{name}": value for name, value in PATIENCE.items()}
    service = harness.host("a")
    ends.callback(lambda: [each.close() for each in harness.hosts.values()])
    exchange = ConformanceExchange(harness, asyncio.run)
    ends.callback(lambda: [each.close() for each in exchange.members])
    user = NOBODY if os.getuid() == 0 else os.getuid()
    enemy = {"kind": "external", "address": str(service.socket), "secret": "the secret of an enemy", "user": user}
    return Attacked(Witness(exchange, lambda: {"external": service.pid}), [enemy], ends)


def remote(folder: Path) -> Attacked:
    """A manager and a worker. The enemy has a key."""
    ends = ExitStack()
    cluster = RemoteCluster(folder, 1, ["--memory", f"{MEMORY}m"])
    ends.callback(cluster.close)
    enemys = key_line("mallory")
    with cluster.keys.open("a") as keys:
        keys.write(enemys + "\n")
    conf = {f"spark.penstock.remote.{name}": value for name, value in PATIENCE.items()}
    harness = RemoteHarness(cluster, "victim", conf)
    ends.callback(harness.close)
    exchange = ConformanceExchange(harness, asyncio.run)
    ends.callback(exchange.close)
    both = {"manager": cluster.manager, "worker": cluster.workers[0]}
    enemies = [{"kind": "remote", "address": each.port, "secret": enemys} for each in both.values()]
    return Attacked(Witness(exchange, lambda: {name: each.pid for name, each in both.items()}), enemies, ends)


@pytest.fixture(params=[external, remote], ids=lambda make: make.__name__)
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attacked]:
    """Each service, with its victim."""
    made = request.param(tmp_path / "service")
    with made.ends:
        yield made


def attacks(kind: str) -> Iterator[tuple[str, str, int]]:
    """Each request in each way, with its bytes; and a half one that is far too large."""
    small, large, huge = SIZES[kind]
    sizes: dict[str, list[int]] = {"largest": [large, huge], "often": [100, large], "half": [large]}
    for way in malicious.WAYS:
        for name in malicious.requests_of(kind):
            for size in sizes.get(way, [small])[: 2 if THOROUGH else 1]:
                yield way, name, size
    yield "half", name, huge


def test_an_enemy_costs_others_little(attacked: Attacked) -> None:
    """All rows come, those of before too, and no process takes more than it may. In the long form: within 2 s."""
    victim = attacked.victim
    before = victim.write()
    for _ in range(3):
        victim.trip()
    alone, began = max(victim.trips), victim.most_memory()
    victim.trips.clear()
    partition = before.descriptor.partition.to_wire()
    for enemy in attacked.enemies:
        each = {
            **enemy,
            "attacks": list(attacks(enemy["kind"])),
            "lines": LINES,
            "seconds": SECONDS,
            "partition": partition,
        }
        command = [sys.executable, malicious.__file__, json.dumps(each)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacking:
            while attacking.poll() is None:
                victim.trip()
            assert attacking.stdout is not None
            said = attacking.stdout.read()
            assert attacking.returncode == 0, said[-2000:]
        print(said)
        victim.read(before)
    victim.trip()
    grown = {name: most - began[name] for name, most in victim.most_memory().items()}
    print(f"alone {alone:.2f} s, {len(victim.trips)} trips of up to {max(victim.trips):.2f} s, MiB: {grown}")
    assert max(grown.values()) <= MEMORY + BESIDE, grown
    assert not THOROUGH or max(victim.trips) <= alone + 2.0
