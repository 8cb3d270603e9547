# SPDX-License-Identifier: Apache-2.0
"""Host services that meet: two with one folder, one socket, a copy of a folder. None harms the other's rows."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from external_harness import SECRET, ExternalHarness
from external_process import ExternalProcess
from penstock.external.keys import ApplicationKey
from penstock.external.requests import EndApplication
from penstock.services.external.client import call
from penstock.testing import DEADLINE
from penstock.testing.conformance_exchange import ConformanceExchange
from penstock.testing.waiting import Running, wait_until
from stored_rows import BATCHES, ROWS, rows_left, written
from underway import listed

pytestmark = pytest.mark.processes

YEARS = 10 * 366 * 86400
_OTHER_TIME = """
import time
now = time.time
time.time = lambda: now() + {seconds}
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ExternalHarness]:
    """An application at one service with two folders, that is patient; its leases are short."""
    harness = ExternalHarness(tmp_path / "h", "folders", SECRET, hosts=())
    harness.conf["spark.penstock.external.retryTimeout"] = "90s"
    second = tmp_path / "second"
    harness.options["a"] = ("--dir", str(second), "--reserve", "1m", "--lease", "2s", "--kept-lease", "2s")
    harness.host("a")
    yield harness
    harness.close()


@pytest.fixture
def exchange(host: ExternalHarness) -> Iterator[ConformanceExchange]:
    """Its workbench."""
    workbench = ConformanceExchange(host, asyncio.run)
    yield workbench
    workbench.close()


def refused(*options: str) -> str:
    """The words of a service that does not start."""
    command = [sys.executable, "-m", "penstock.cli", "service", "external", "--host", "127.0.0.1", *options]
    found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert found.returncode == 2, found
    return found.stderr


def test_each_folder_and_the_socket_have_one_service(
    host: ExternalHarness, exchange: ConformanceExchange, tmp_path: Path
) -> None:
    """A second service is refused, whichever folder it shares, and removes nothing of the first one's."""
    service, second = host.host("a"), tmp_path / "second"
    producers = [written(exchange, 4, index=index) for index in range(4)]
    held = [*service.folders(), *listed(second, "data/??/*")]
    assert len(held) == 4
    for folder in (service.folder, second):
        other = str(tmp_path / f"other-{folder.name}")
        told = refused("--dir", other, "--dir", str(folder), "--port", "0")
        assert f"another host service uses {folder} (process {service.pid})" in told
    told = refused("--dir", str(tmp_path / "third"), "--port", "0", "--socket", str(service.socket))
    assert f"another process listens at {service.socket}" in told
    assert "--socket" in told
    told = refused("--dir", str(tmp_path / "fourth"), "--port", str(service.port))
    assert "can't listen at" in told
    assert all(folder.exists() for folder in held)
    for producer in (*producers, written(exchange, 4, index=4)):
        assert rows_left(exchange.consume([(producer.descriptor, 0, 4)], host="a")) == 4 * ROWS


def test_a_copy_of_a_folder_is_a_service_of_its_own(
    host: ExternalHarness, exchange: ConformanceExchange, tmp_path: Path
) -> None:
    """It serves the rows of its own files, and what it removes is not the first one's."""
    service = host.host("a")
    producer = written(exchange, 4)
    places = [tmp_path / "copy", tmp_path / "copy-of-second"]
    for source, place in zip((service.folder, tmp_path / "second"), places, strict=True):
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.sock", "*.log"))
    copy = ExternalProcess(places[0], "--dir", str(places[1]), "--reserve", "1m")
    try:
        call(ApplicationKey.of("folders", SECRET), f"tcp://127.0.0.1:{copy.port}", [EndApplication()], 60.0)
        wait_until(
            lambda: not [*listed(places[0], "data/??/*"), *listed(places[1], "data/??/*")], "the copy to be empty"
        )
    finally:
        copy.close()
    assert rows_left(exchange.consume([(producer.descriptor, 0, 4)], host="a")) == 4 * ROWS


@pytest.mark.thorough
def test_reads_go_on_over_kills_and_another_time(
    host: ExternalHarness, exchange: ConformanceExchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is held open while its service is killed twice gets each row once, at another time."""
    service = host.host("a")
    producer = written(exchange)
    (tmp_path / "seam").mkdir()
    consumer = exchange.consume([(producer.descriptor, 0, 4)], host="a")
    rows = 0
    for seconds in (YEARS, -YEARS):
        rows += consumer.batch().num_rows
        service.kill()
        (tmp_path / "seam" / "sitecustomize.py").write_text(_OTHER_TIME.format(seconds=seconds))
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", str(tmp_path / "seam"), prepend=":")
            service.start()
    rest = Running(lambda: rows_left(consumer))
    assert rows + int(str(rest.join(DEADLINE))) == ROWS * BATCHES
    assert "all of it goes" not in service.log.read_text()


def test_a_lease_does_not_end_during_a_read(host: ExternalHarness, exchange: ConformanceExchange) -> None:
    """A reader that stands still while leases of others end reads on: its connection is its sign of life."""
    service = host.host("a")
    producer = written(exchange)
    consumer = exchange.consume([(producer.descriptor, 0, 4)], host="a")
    rows = consumer.batch().num_rows
    other = ExternalHarness(host.folder / "other", "other", b"the secret of another one", hosts=())
    other.hosts["a"] = service
    theirs = ConformanceExchange(other, asyncio.run)
    for times in (1, 2):
        written(theirs, 1, index=times)
        for member in theirs.members:
            member.close()
        wait_until(
            lambda times=times: service.log.read_text().count("nobody has heard of other") == times,  # type: ignore[misc]
            "another lease to end",
        )
    assert rows + rows_left(consumer) == ROWS * BATCHES
    theirs.close()
