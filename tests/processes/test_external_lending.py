# SPDX-License-Identifier: Apache-2.0
"""Readers on the host of the service `external` are lent its files: the same rows and errors as where they fetch."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from effort import with_all
from ess_process import free_port
from external_harness import ExternalHarness
from external_process import ExternalProcess
from penstock.errors import IncompleteDataError, PartitionLostError, PartitionReleasedError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import EndApplication
from penstock.services.external.client import call
from penstock.services.external.lending import OPEN_FILES
from penstock.testing import DEADLINE
from penstock.testing.conformance_exchange import ConformanceExchange
from penstock.testing.waiting import Running, wait_until
from stored_rows import BATCHES, ROWS, cut, flip, rows_left, written

pytestmark = pytest.mark.processes

LENDING = "spark.penstock.external.lending"


@pytest.fixture(scope="module")
def metrics_port() -> int:
    """The port at which the service tells its figures."""
    return free_port()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[ExternalHarness]:
    """One host with writers and readers, and another one."""
    harness = ExternalHarness(tmp_path_factory.mktemp("lending"), "lending", hosts=())
    harness.options["a"] = ("--reserve", "1m", "--metrics-port", str(metrics_port), "--metrics-host", "127.0.0.1")
    harness.join("b", "a")
    harness.host("c")
    yield harness
    harness.close()


@pytest.fixture
def exchange(hosts: ExternalHarness) -> Iterator[ConformanceExchange]:
    """The suite's workbench."""
    workbench = ConformanceExchange(hosts, asyncio.run)
    yield workbench
    workbench.close()
    hosts.conf.pop(LENDING, None)
    hosts.forget_hosts()


@pytest.fixture
def given(metrics_port: int) -> Callable[[], dict[str, int]]:
    """The bytes that readers have got since the test began, by way."""
    sample = re.compile(r'^penstock_external_given_bytes_total\{.*way="(\w+)".*\} (\S+)$', re.MULTILINE)

    def now() -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=DEADLINE) as answer:
            return {way: int(float(value)) for way, value in sample.findall(answer.read().decode())}

    before = now()
    return lambda: {way: value - before.get(way, 0) for way, value in now().items()}


def file_of(service: ExternalProcess) -> Path:
    """The data file of the only partition of a service."""
    (folder,) = service.folders()
    return folder / "data.0"


def test_what_is_lent_counts_as_given_and_is_told_apart(
    exchange: ConformanceExchange, given: Callable[[], dict[str, int]]
) -> None:
    """The reader counts the bytes that it reads, the service those that it lends, and no row comes from the port."""
    producer = written(exchange)
    consumer = exchange.consume([(producer.descriptor, 0, 4)])
    assert rows_left(consumer) == ROWS * BATCHES
    size = consumer.owner.metrics.values["bytes_in"]
    assert size > ROWS * BATCHES * 8
    assert given() == {"fetched": 0, "lent": size}


@pytest.mark.parametrize("why", ["the setting", "the socket", "another service's socket"])
def test_rows_are_fetched_where_nothing_is_lent(
    hosts: ExternalHarness, exchange: ConformanceExchange, given: Callable[[], dict[str, int]], why: str
) -> None:
    """Without `lending`, without the socket, or where the socket is not that of the partition's service."""
    producer = written(exchange, 4)
    service, socket = hosts.host("a"), hosts.host("a").socket
    exchange.host("b")  # the suite's own look at it has the socket
    if why == "the setting":
        hosts.conf[LENDING] = "false"
    elif why == "the socket":
        service.socket = service.folder / "none.sock"
    else:
        service.socket = hosts.host("c").socket
    try:
        consumer = exchange.consume([(producer.descriptor, 0, 4)])
    finally:
        service.socket = socket
    assert rows_left(consumer) == 4 * ROWS
    assert given() == {"fetched": consumer.owner.metrics.values["bytes_in"], "lent": 0}


def test_the_rest_is_fetched_when_the_service_was_killed(tmp_path: Path) -> None:
    """It is killed when the first rows have come, and started again: all rows come, and none twice."""
    harness = ExternalHarness(tmp_path, "killed", b"a secret of the killed one", hosts=("a",))
    harness.conf["spark.penstock.external.retryTimeout"] = "60s"
    harness.join("b", "a")
    exchange, service = ConformanceExchange(harness, asyncio.run), harness.host("a")
    try:
        producer = written(exchange)
        consumer = exchange.consume([(producer.descriptor, 0, 4)])
        first = consumer.batch().num_rows
        service.kill()
        rest = Running(lambda: rows_left(consumer))
        service.start()
        assert first + int(str(rest.join(DEADLINE))) == ROWS * BATCHES
        assert rows_left(exchange.consume([(producer.descriptor, 0, 4)])) == ROWS * BATCHES
    finally:
        exchange.close()
        harness.close()


def test_a_service_that_stands_still_is_waited_for(hosts: ExternalHarness, exchange: ConformanceExchange) -> None:
    """It answers neither at its socket nor at its port for a while: the rows come when it does."""
    producer, service = written(exchange, 4), hosts.host("a")
    hosts.conf["spark.penstock.external.retryTimeout"] = "60s"
    consumer = exchange.consume([(producer.descriptor, 0, 4)])
    service.pause()
    try:
        rest = Running(lambda: rows_left(consumer))
        with pytest.raises(AssertionError, match="did not end"):
            rest.join(0.2)
    finally:
        service.resume()
    assert rest.join() == 4 * ROWS


def test_a_partition_that_is_released_while_it_is_read_is_an_error(
    hosts: ExternalHarness, exchange: ConformanceExchange
) -> None:
    """The service frees its space at once, whoever has the file; its reader hears what has happened."""
    producer = written(exchange)
    consumer = exchange.consume([(producer.descriptor, 0, 4)])
    consumer.batch()
    asyncio.run(hosts.master.release_partition_externally(producer.descriptor))
    wait_until(lambda: not hosts.host("a").folders(), "the files to be removed")
    with pytest.raises(PartitionReleasedError, match="was released"):
        rows_left(consumer)


@pytest.mark.parametrize("lending", ["true", with_all("false")])
def test_an_application_that_ends_while_it_is_read_is_an_error(tmp_path: Path, lending: str) -> None:
    """As when its lease ends: all of it goes at once, and its reader hears so, either way.

    A connection that ends with it is not made again: the service does not know the application any more.
    """
    secret = b"a secret of the ended one"
    harness = ExternalHarness(tmp_path, "ended", secret, hosts=("a",))
    harness.conf[LENDING] = lending
    harness.join("b", "a")
    exchange = ConformanceExchange(harness, asyncio.run)
    try:
        producer = written(exchange)
        consumer = exchange.consume([(producer.descriptor, 0, 4)])
        consumer.batch()
        call(ApplicationKey.of("ended", secret), producer.descriptor.address, [EndApplication()], 30.0)
        wait_until(lambda: not harness.host("a").folders(), "the files to be removed")
        with pytest.raises((PartitionReleasedError, PartitionLostError)):
            rows_left(consumer)
    finally:
        exchange.close()
        harness.close()


@pytest.mark.parametrize("lending", ["true", with_all("false")])
@pytest.mark.parametrize(
    ("damage", "error"), [(flip, IncompleteDataError), (cut, IncompleteDataError), (Path.unlink, PartitionLostError)]
)
def test_damage_is_found(
    hosts: ExternalHarness,
    exchange: ConformanceExchange,
    damage: Callable[[Path], object],
    error: type[Exception],
    lending: str,
) -> None:
    """A flipped bit, a file that was cut or removed: the same error, which names the partition, either way."""
    hosts.conf[LENDING] = lending
    producer = written(exchange, 8)
    damage(file_of(hosts.host("a")))
    with pytest.raises(error) as caught:
        rows_left(exchange.consume([(producer.descriptor, 0, 4)]))
    assert getattr(caught.value, "partition", None) == producer.descriptor.partition.to_wire()


@pytest.mark.parametrize("damage", [cut, flip])
def test_damage_while_it_is_read_is_found(
    hosts: ExternalHarness, exchange: ConformanceExchange, damage: Callable[[Path], None]
) -> None:
    """The file is cut, or a bit turned, after its first rows were given."""
    producer = written(exchange)
    consumer = exchange.consume([(producer.descriptor, 0, 4)])
    consumer.batch()
    damage(file_of(hosts.host("a")))
    with pytest.raises(IncompleteDataError):
        rows_left(consumer)


def test_many_files_are_lent_in_turns(hosts: ExternalHarness, exchange: ConformanceExchange) -> None:
    """A gate over more partitions than it has open at a time reads them all, and gives every file back."""
    producers = [written(exchange, 1, index=index) for index in range(OPEN_FILES + 6)]
    consumer = exchange.consume([(producer.descriptor, 0, 4) for producer in producers])
    assert rows_left(consumer) == ROWS * len(producers)
