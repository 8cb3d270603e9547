# SPDX-License-Identifier: Apache-2.0
"""A manager whose disk takes nothing: what is new is refused with words, what is there is served, nothing is lost."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from effort import with_all
from penstock.errors import ControlError, PartitionReleasedError, PenstockError, StorageError
from penstock.shuffle import PartitionKind
from penstock.testing import DEADLINE
from penstock.testing.conformance import ConformanceExchange
from penstock.testing.conformance_exchange import NUMBERS, Producer, WantedPartition
from penstock.testing.waiting import Running, wait_until
from remote_cluster import RemoteCluster
from remote_harness import RemoteHarness
from slow_disks import failing_disk
from small_disks import small_disk

pytestmark = pytest.mark.processes

KIND = PartitionKind.BLOCKING_SORT_MERGE
ROWS = 1 << 12
BATCHES = 8
REFUSED = r"manager of the remote shuffle service can't keep its state in .*manager\.log.*See that the disk has room"
ENDS = (
    r"penstock: the manager .* can't keep its state in .*manager\.log.*See that the disk has room.*Nor can its log be"
    r" read.*the manager .*ends\. Start it again in the same --dir"
)
SLOWLY = ["--rejoin", "60s"]
IMPATIENT = {"spark.penstock.remote.retryTimeout": "3s"}
PATIENT = {"spark.penstock.remote.retryTimeout": f"{DEADLINE:g}s"}


class FailingManager:
    """A service whose manager can't write its log while it `fails`, and applications of it."""

    def __init__(self, cluster: RemoteCluster, fail: Callable[[], None], heal: Callable[[], None]) -> None:
        self.cluster = cluster
        self.fail = fail
        self.heal = heal
        self._ends: list[RemoteHarness | ConformanceExchange] = []
        self._next = 0

    def exchange(self, name: str, conf: dict[str, str]) -> ConformanceExchange:
        """The workbench of an application."""
        harness = RemoteHarness(self.cluster, name, conf)
        exchange = ConformanceExchange(harness, asyncio.run)
        self._ends = [exchange, harness, *self._ends]
        return exchange

    def begun(self, exchange: ConformanceExchange) -> Producer:
        """Begin a partition that no other one has the number of."""
        self._next += 1
        return exchange.produce(WantedPartition(KIND, subpartitions=4, index=self._next))

    def is_refused(self, exchange: ConformanceExchange) -> None:
        """Begin partitions until it is refused: the last page of the log has room for some."""
        with pytest.raises(StorageError, match=REFUSED):  # noqa: PT012 - which of them is refused nobody knows
            for _ in range(1000):
                self.begun(exchange)

    def close(self) -> None:
        """End all, also where the manager is gone: then the test has failed, and says why itself."""
        for end in self._ends:
            with suppress(StorageError, ControlError):
                end.close()
        self.cluster.close()


def with_a_full_disk(folder: Path, disk: Path, *, loses_log: bool = False) -> FailingManager:
    """The manager's folder is on a small disk, which somebody else fills; the log may have another name meanwhile."""
    ballast, log = disk / "ballast", disk / "state" / "manager.log"
    elsewhere = log.with_suffix(".elsewhere")

    def fill() -> None:
        if loses_log:
            log.rename(elsewhere)
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def heal() -> None:
        ballast.unlink()
        if loses_log:
            elsewhere.rename(log)

    cluster = RemoteCluster(folder, 2, manager_options=["--dir", str(log.parent), *SLOWLY])
    return FailingManager(cluster, fill, heal)


def with_a_broken_disk(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> FailingManager:
    """Each write of the manager's log fails with this error, and each read if it says so."""
    flag = folder / "flag"

    def break_it() -> None:
        whole = flag.with_suffix(".new")
        whole.write_text(kind)
        whole.rename(flag)

    with monkeypatch.context() as patched:
        for name, value in failing_disk(folder / "seam", "manager.log", flag).items():
            patched.setenv(name, value)
        cluster = RemoteCluster(folder / "remote", 2, manager_options=SLOWLY)
    return FailingManager(cluster, break_it, flag.unlink)


@pytest.fixture(params=["full", with_all("EIO"), with_all("EROFS")])
def failing(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FailingManager]:
    """A service whose manager can fail in one way."""
    if request.param == "full":
        with small_disk(tmp_path / "disk", 1) as disk:
            found = with_a_full_disk(tmp_path / "remote", disk)
            yield found
            found.close()
    else:
        found = with_a_broken_disk(tmp_path, request.param, monkeypatch)
        yield found
        found.close()


def nothing() -> None:
    """Do nothing."""


def write(producer: Producer) -> None:
    """A few batches."""
    for number in range(BATCHES):
        producer.writer.write(pa.record_batch([pa.array(range(ROWS), pa.int64())], schema=NUMBERS), number % 4)


def rows_of(exchange: ConformanceExchange, producer: Producer) -> int:
    """The rows of a partition."""
    items = exchange.consume([(producer.descriptor, 0, 4)]).drain()
    return sum(item.batch.num_rows for item in items if item.batch is not None)


def test_a_manager_whose_disk_takes_nothing_goes_on_when_it_does(failing: FailingManager) -> None:
    """Complete partitions are read, new ones refused, patient clients wait; then all goes on, without a restart.

    A partition that was released meanwhile is released after a restart too.
    """
    manager = failing.cluster.manager
    impatient, patient = failing.exchange("impatient", IMPATIENT), failing.exchange("patient", PATIENT)
    done, given_back, finishing = (failing.begun(patient) for _ in range(3))
    for producer in (done, given_back, finishing):
        write(producer)
    done.writer.finish()
    given_back.writer.finish()
    failing.fail()
    failing.is_refused(impatient)
    patient.host("a").release_partitions_locally([given_back.descriptor.partition])
    assert rows_of(patient, done) == ROWS * BATCHES
    late, ending = Running(lambda: failing.begun(patient)), Running(finishing.writer.finish)
    failing.is_refused(impatient)
    with pytest.raises(AssertionError, match="did not end"):
        late.join(2.0)
    with pytest.raises(AssertionError, match="did not end"):
        ending.join(0.1)
    assert manager.process is not None
    assert manager.process.poll() is None
    failing.heal()
    begun = late.join(DEADLINE)
    ending.join(DEADLINE)
    assert isinstance(begun, Producer)
    write(begun)
    begun.writer.finish()
    assert "keeps its state again" in manager.log.read_text()
    last = failing.begun(impatient)
    write(last)
    last.writer.finish()
    for restarts in (0, 1):
        if restarts:
            manager.kill()
            manager.start()
        for producer in (done, finishing, begun):
            assert rows_of(patient, producer) == ROWS * BATCHES, restarts
        with pytest.raises(PartitionReleasedError):
            rows_of(patient, given_back)
        assert rows_of(impatient, last) == ROWS * BATCHES, "the first that was refused was never there"
    assert " is lost: " not in manager.log.read_text()
    for producer in (done, finishing, begun):
        patient.host("a").release_partitions_locally([producer.descriptor.partition])


def test_a_worker_that_comes_meanwhile_is_taken_afterwards(failing: FailingManager) -> None:
    """A new one, and one that was killed and started again: both have to wait, and rows are there as before."""
    cluster = failing.cluster
    patient = failing.exchange("patient", PATIENT)
    done = failing.begun(patient)
    write(done)
    done.writer.finish()
    failing.fail()
    failing.is_refused(failing.exchange("impatient", IMPATIENT))
    known = cluster.times_known()
    for worker in cluster.workers:
        worker.kill()
    for worker in cluster.workers:
        worker.start()
    reading = Running(lambda: rows_of(patient, done))
    for worker in cluster.workers:
        wait_until(lambda log=worker.log: "can't keep its state" in log.read_text(), "a worker to be refused")  # type: ignore[misc]
    assert cluster.times_known() == known
    failing.heal()
    wait_until(lambda: cluster.times_known() == known + 2, "the workers to be known again")
    assert reading.join(DEADLINE) == ROWS * BATCHES
    assert " is lost: " not in cluster.manager.log.read_text()


@pytest.mark.parametrize("kind", [with_all("full"), "EIO"])
def test_a_manager_that_can_t_read_its_log_either_ends(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows what it does not keep, so it ends and says what to do; started again it knows what it has promised.

    Complete partitions are read all the while, as their workers keep them.
    """
    with ExitStack() as ends:
        if kind == "full":
            disk = ends.enter_context(small_disk(tmp_path / "disk", 1))
            failing = with_a_full_disk(tmp_path / "remote", disk, loses_log=True)
        else:
            failing = with_a_broken_disk(tmp_path, f"{kind} read", monkeypatch)
        ends.callback(failing.close)
        manager, patient = failing.cluster.manager, failing.exchange("patient", PATIENT)
        done = failing.begun(patient)
        write(done)
        done.writer.finish()
        failing.fail()

        def begin_until_it_ends() -> None:
            impatient = failing.exchange("impatient", IMPATIENT)
            with pytest.raises(PenstockError):  # noqa: PT012 - the last page of the log has room for some
                for _ in range(1000):
                    failing.begun(impatient)

        beginning = Running(begin_until_it_ends)
        assert manager.wait() == 1
        beginning.join(DEADLINE)
        said = manager.log.read_text()
        assert re.search(ENDS, said), said[-3000:]
        assert "Traceback" not in said, said[-4000:]
        failing.heal()
        manager.start()
        assert rows_of(patient, done) == ROWS * BATCHES
        again = failing.begun(patient)
        write(again)
        again.writer.finish()
        assert rows_of(patient, again) == ROWS * BATCHES
        assert " is lost: " not in manager.log.read_text()


def test_a_folder_that_may_not_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    """With its path and what to do; when it may be written again all is known."""
    with small_disk(tmp_path / "disk", 4) as disk:
        cluster = RemoteCluster(tmp_path / "remote", 1, manager_options=["--dir", str(disk), *SLOWLY])
        failing = FailingManager(cluster, nothing, nothing)
        try:
            exchange = failing.exchange("patient", PATIENT)
            done = failing.begun(exchange)
            write(done)
            done.writer.finish()
            cluster.manager.kill()
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            with pytest.raises(AssertionError, match=r"can't keep its state in .*Read-only.*may be written"):
                cluster.manager.start()
            cluster.manager.kill()
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            cluster.manager.start()
            assert rows_of(exchange, done) == ROWS * BATCHES
        finally:
            failing.close()
