# SPDX-License-Identifier: Apache-2.0
"""`penstock.client` at a real host service, and at a real manager with a worker; some of it without PySpark."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

import client_scripts
from bare_environment import BareEnvironment
from effort import THOROUGH
from external_process import ExternalProcess
from penstock import client
from penstock.connection.handshake import VERSION
from penstock.errors import (
    AuthenticationError,
    ControlError,
    NoStorageError,
    PartitionLostError,
    PartitionNotProducedError,
    PartitionReleasedError,
    PenstockError,
    QuotaError,
    SchemaError,
    SettingError,
    TaskCancelledError,
    VersionError,
)
from penstock.testing import DEADLINE
from penstock.testing.waiting import wait_until
from remote_cluster import USER, RemoteCluster

pytestmark = pytest.mark.processes

SCHEMA = pa.schema([("id", pa.int64())])
MANY = 1_000_000


@dataclass
class Place:
    """A service, and how a client gets there."""

    address: str
    options: dict[str, Any]
    files: Callable[[], list[Path]]
    pid: Callable[[], int]
    """The process that has the rows."""
    log: Path
    more: dict[str, str] = field(default_factory=dict)

    def connect(self, **options: Any) -> client.ShuffleClient:
        """A new client."""
        return client.connect(self.address, **{**self.options, **options})

    @property
    def another(self) -> dict[str, str]:
        """The options by which a client has an application of its own, which ends with it."""
        return {"application": ""} if "key" in self.options else {}

    @property
    def words(self) -> str:
        """The same for a script."""
        return json.dumps({"address": self.address, **self.options})

    def wait_for_no_more_than(self, there: list[Path]) -> None:
        """Wait until the service has no partitions or merged files but these."""
        wait_until(lambda: set(self.files()) <= set(there), "new files to go")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> BareEnvironment:
    """The environment of an installation without extras."""
    return BareEnvironment(tmp_path_factory.mktemp("bare") / "environment")


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory, bare: BareEnvironment) -> Iterator[ExternalProcess]:
    """A host service, which runs without PySpark, too."""
    folder = tmp_path_factory.mktemp("external")
    service = ExternalProcess(folder, "--reserve", "1m", "--quota", "640m", python=str(bare.python))
    yield service
    service.close()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteCluster]:
    """A manager and a worker."""
    cluster = RemoteCluster(tmp_path_factory.mktemp("remote"), 1)
    yield cluster
    cluster.close()


@pytest.fixture(params=["external", "remote"])
def place(request: pytest.FixtureRequest, external: ExternalProcess, remote: RemoteCluster) -> Place:
    """Each of them."""
    if request.param == "external":
        service = external
        conf = {"spark.penstock.external.port": str(service.port), "spark.penstock.external.retryTimeout": "5s"}
        return Place(str(service.socket), {"conf": conf}, service.folders, lambda: service.pid, service.log)
    cluster = remote
    options = {
        "key": cluster.keys.read_text().strip(),
        "application": f"test-{os.getpid()}",
        "conf": {"spark.penstock.remote.retryTimeout": "5s"},
    }
    return Place(cluster.manager.address, options, cluster.files, lambda: cluster.workers[0].pid, cluster.manager.log)


def rows(count: int, begin: int = 0) -> pa.RecordBatch:
    """Numbered rows."""
    return pa.record_batch([pa.array(range(begin, begin + count), pa.int64())], SCHEMA)


def ids(read: client.PartRows) -> list[int]:
    """The numbers of all rows, in order."""
    return sorted(number for batch in read for number in batch.column(0).to_pylist())


def test_it_runs_without_pyspark(place: Place, bare: BareEnvironment) -> None:
    """In an environment of the requirements alone a client writes and reads, and imports nothing of Spark's."""
    assert "pyspark" not in bare.names
    ran = bare.run("-c", client_scripts.ROUND_TRIP, place.words)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("ok [251, 255, 247, 247]"), "the hash of a key is that of Spark's tasks"


def test_a_name_stands_for_the_newest_result(place: Place) -> None:
    """Another client of the user finds it, partition by partition; what it stood for before goes."""
    there = place.files()
    for turn in (1, 2):
        with place.connect() as service, service.write("numbers", SCHEMA, partitions=2) as writer:
            writer.write(rows(10 * turn), partition=0)
            writer.write(rows(5, 100), partition=1)
    with place.connect() as service:
        found = service.find("numbers")
        assert found is not None
        assert (found.partitions, found.schema) == (2, SCHEMA)
        assert ids(service.read("numbers", 0)) == list(range(20))
        assert ids(service.read("numbers")) == [*range(20), *range(100, 105)]
        assert service.read("numbers").read_all().num_rows == 25
        with pytest.raises(SettingError, match="no partition 2"):
            service.read("numbers", 2)
        assert service.find("letters") is None
        with pytest.raises(PartitionNotProducedError, match="letters"):
            service.read("letters")
        with service.write("numbers", SCHEMA) as writer:
            pass
        assert service.read("numbers").read_all().num_rows == 0
    place.wait_for_no_more_than([*there, *place.files()])


def test_a_name_outlives_its_application(place: Place) -> None:
    """The client that wrote it has ended its application: another one of the user reads it, and replaces it."""
    there = place.files()
    with place.connect(**place.another) as service, service.write("left", SCHEMA) as writer:
        writer.write(rows(MANY))
    with place.connect(**place.another) as service:
        read = service.read("left")
        first = next(read)
        assert first.num_rows + read.read_all().num_rows == MANY
        with service.write("left", SCHEMA):
            pass
    wait_until(lambda: len(set(place.files()) - set(there)) <= 1, "the rows to go")


def test_two_who_give_one_name_at_once(remote: RemoteCluster) -> None:
    """The last whole one has it; readers meanwhile have a whole one or hear that theirs was replaced."""
    there = remote.files()
    begin = Barrier(3)
    connect = functools.partial(client.connect, remote.manager.address, key=remote.keys.read_text().strip())

    def writes(number: int) -> None:
        with connect() as service:
            for turn in range(4):
                with service.write("contested", SCHEMA, partitions=2) as writer:
                    for half in (0, 1):
                        writer.write(rows(1000, 10_000 * (8 * turn + 2 * number + half)), partition=half)
                    if not turn:
                        begin.wait(DEADLINE)

    def reads() -> set[int]:
        found = set()
        with connect() as service:
            begin.wait(DEADLINE)
            for _ in range(8):
                with contextlib.suppress(PartitionReleasedError, PartitionNotProducedError):
                    table = service.read("contested").read_all()
                    found.add(table.num_rows)
        return found

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(writes, number) for number in (0, 1)]
        seen = pool.submit(reads)
        for writer in writers:
            writer.result(DEADLINE)
        assert seen.result(DEADLINE) <= {2000}
    with connect() as service:
        last = ids(service.read("contested"))
        number = last[0] // 20_000 % 4
        assert number in (0, 1)
        assert last == [*range(last[0], last[0] + 1000), *range(last[0] + 10_000, last[0] + 11_000)]
        with service.write("contested", SCHEMA):
            pass
    wait_until(lambda: set(remote.files()) <= set(there), "the rows to go")


def test_another_process_takes_part(place: Place) -> None:
    """Its part is read, put under a name with one of ours, and one that nobody needs is removed."""
    there = place.files()
    with place.connect(application="joined") if "key" in place.options else place.connect() as service:
        access = pickle.dumps(service.access).hex()
        ran = subprocess.run(
            [sys.executable, "-c", client_scripts.JOINED, access], capture_output=True, text=True, timeout=DEADLINE
        )
        assert ran.returncode == 0, ran.stderr
        theirs: client.Part = pickle.loads(bytes.fromhex(ran.stdout))  # noqa: S301 - our own
        assert theirs.rows == (3,)
        with service.write_part(SCHEMA, 2) as writer:
            writer.write(rows(4), subpartition=1)
        ours = writer.finish()
        assert (ours.rows, ours.subpartitions, ours.schema) == ((0, 4), 2, SCHEMA)
        assert ids(service.read_parts([theirs])) == [1, 2, 3]
        assert ids(service.read_parts([ours], 1)) == [0, 1, 2, 3]
        with pytest.raises(SettingError, match="1 of these parts have more"):
            service.keep("mixed", [theirs, ours])
        service.release([ours, theirs])
        service.release([ours])
        with pytest.raises(PartitionReleasedError, match="not there any more"):
            service.read_parts([theirs]).read_all()
        place.wait_for_no_more_than(there)


def test_what_fails_leaves_nothing(place: Place) -> None:
    """Neither an error in the block, nor rows of another schema, nor a client that is closed, leaves any rows."""
    there = place.files()
    with place.connect() as service:
        with pytest.raises(ZeroDivisionError):
            _break_off(service)
        assert service.find("broken") is None
        part = service.write_part(SCHEMA)
        with pytest.raises(SchemaError, match="other"):
            part.write(pa.record_batch([pa.array([1])], ["other"]))
        with pytest.raises(SettingError, match="no subpartition 1"):
            part.write(rows(1), subpartition=1)
        part.write(rows(10))
        part.cancel()
        with pytest.raises(TaskCancelledError):
            part.write(rows(10))
        left = service.write_part(SCHEMA)
        left.write(rows(10))
    left.close()
    place.wait_for_no_more_than(there)
    with pytest.raises(PenstockError, match="closed"):
        service.find("broken")


def _break_off(service: client.ShuffleClient) -> None:
    with service.write("broken", SCHEMA, partitions=2) as result:
        result.write(rows(1000))
        raise ZeroDivisionError


def _begin_eleven(service: client.ShuffleClient) -> None:
    with contextlib.ExitStack() as writers:
        for _ in range(11):
            writers.enter_context(service.write_part(SCHEMA))


async def _cancelled(place: Place) -> None:
    """Stand the process still that has the rows, cancel a call that waits for it, and let it go on."""
    async with client.connect_async(place.address, **place.options) as service:
        async with service.write_part(SCHEMA) as writer:
            await writer.write(rows(MANY))
        part = await writer.finish()
        writing = service.write_part(SCHEMA)
        for call in (_reads(service, part), _writes(writing)):
            os.kill(place.pid(), signal.SIGSTOP)
            task = asyncio.create_task(call)
            done, _ = await asyncio.wait({task}, timeout=0.2)
            assert not done
            task.cancel()
            os.kill(place.pid(), signal.SIGCONT)
            with pytest.raises(asyncio.CancelledError):
                await task
        rest = await service.read_parts([part]).read_all()
        assert rest.num_rows == MANY
        await service.release([part])


async def _reads(service: client.AsyncShuffleClient, part: client.Part) -> None:
    async for _ in service.read_parts([part]):
        pass


async def _writes(writer: client.AsyncWriter[Any, Any]) -> None:
    async with writer:
        while True:
            await writer.write(rows(MANY))


def test_cancelled_calls_leave_nothing(place: Place) -> None:
    """Of a write and a read that are cancelled while the service stands still nothing stays; others go on."""
    there = place.files()
    asyncio.run(_cancelled(place))
    place.wait_for_no_more_than(there)


async def _connects_in_vain(place: Place) -> None:
    os.kill(place.pid(), signal.SIGSTOP)
    opening = client.connect_async(place.address, **place.options)
    task = asyncio.create_task(opening.__aenter__())
    done, _ = await asyncio.wait({task}, timeout=0.1)
    task.cancel()
    os.kill(place.pid(), signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not done
    with pytest.raises(PenstockError, match="async with"):
        opening.read("anything")
    async with client.connect_async(place.address, **place.options) as service:
        writer = service.write_part(SCHEMA)
        await writer.write(rows(1))
        await writer.close()
        with pytest.raises(PenstockError, match="closed"):
            await writer.write(rows(1))


def test_a_client_that_is_cancelled_while_it_connects_is_closed(external: ExternalProcess) -> None:
    """No thread and no descriptor of it stays; a writer that is closed says so."""
    conf = {"spark.penstock.external.port": str(external.port)}
    place = Place(str(external.socket), {"conf": conf}, external.folders, lambda: external.pid, external.log)
    asyncio.run(_connects_in_vain(place))


async def _many(place: Place) -> list[int]:
    async with client.connect_async(place.address, **place.options) as service:

        async def part(number: int) -> client.Part:
            async with service.write_part(SCHEMA) as writer:
                await writer.write(rows(100, 100 * number))
            return await writer.finish()

        parts = await asyncio.gather(*(part(number) for number in range(8)))
        await service.keep("many", parts)
        tables = await asyncio.gather(*(service.read("many", number).read_all() for number in range(8)))
        found = await service.find("many")
        assert found is not None
        async with service.read("many") as some:
            assert (await anext(some)).num_rows
        return [int(table.column(0)[0].as_py()) for table in tables]


def test_an_event_loop_has_many_at_once(place: Place) -> None:
    """Eight parts are written side by side, kept in order, and read side by side."""
    assert asyncio.run(_many(place)) == [100 * number for number in range(8)]
    with place.connect() as service, service.write("many", SCHEMA):
        pass


def test_a_reader_that_is_closed_early_has_no_end(place: Place) -> None:
    """The rows that did not come do not pass for the end; one that is at its end stays there."""
    with place.connect() as service:
        with service.write_part(SCHEMA) as writer:
            writer.write(rows(MANY))
        part = writer.finish()
        whole = service.read_parts([part])
        assert whole.read_all().num_rows == MANY
        assert whole.next() is None
        reader, other = service.read_parts([part]), service.read_parts([part])
        assert reader.next() is not None
        reader.close()
        with pytest.raises(PenstockError, match="closed"):
            reader.next()
        assert other.next() is not None
        service.release([part])
    with pytest.raises(PenstockError, match="closed"):
        other.read_all()


@pytest.mark.thorough
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_host_service_that_is_killed_ends_no_reader_early(tmp_path: Path, comes_back: bool) -> None:
    """In mid-read: the reader has all rows, each once, from the next service, or an error that says they are lost."""
    service = ExternalProcess(tmp_path, "--reserve", "1m")
    wait = "30s" if comes_back else "1s"
    conf = {"spark.penstock.external.port": str(service.port), "spark.penstock.external.retryTimeout": wait}
    with contextlib.closing(service), client.connect(str(service.socket), conf=conf) as writes:
        with writes.write("many", SCHEMA) as result:
            for begin in range(0, 8 * MANY, MANY):
                result.write(rows(MANY, begin))
        with client.connect(str(service.socket), conf=conf) as reads:
            read = reads.read("many")
            had = next(read)
            service.kill()
            if comes_back:
                service.start()
                both = pa.Table.from_batches([had, *read.read_all().to_batches()])
                assert both.num_rows == len(both["id"].unique()) == 8 * MANY
            else:
                with pytest.raises(PartitionLostError, match=r"service|is lost|answer"):
                    read.read_all()


def _half_written(words: str) -> subprocess.Popen[str]:
    """A process that writes, and is killed while it does."""
    writer = subprocess.Popen(
        [sys.executable, "-c", client_scripts.HALF_WRITTEN, words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "half\n"
    return writer


@pytest.mark.skipif(not THOROUGH, reason="a lease is longer than a test")
def test_a_killed_writer_s_rows_go_from_a_remote_service_with_the_lease(tmp_path: Path) -> None:
    """The application of a client that is gone ends when its lease does, and nothing of it stays at the worker."""
    cluster = RemoteCluster(tmp_path / "remote", 1, manager_options=["--lease", "6s"])
    try:
        words = {"address": cluster.manager.address, "key": cluster.keys.read_text().strip()}
        with _half_written(json.dumps(words)) as writer:
            wait_until(cluster.files, "rows to come")
            writer.kill()
        wait_until(lambda: not cluster.files(), "the lease to end")
    finally:
        cluster.close()


@pytest.mark.skipif(not THOROUGH, reason="a lease is longer than a test")
def test_a_killed_writer_s_rows_go_while_its_application_lives(tmp_path: Path) -> None:
    """The manager has not heard of the writer for the lease, and hears of another client of the application."""
    cluster = RemoteCluster(tmp_path / "remote", 1, manager_options=["--lease", "8s"])
    try:
        words = {"key": cluster.keys.read_text().strip(), "application": "shared"}
        with (
            client.connect(cluster.manager.address, **words) as service,
            _half_written(json.dumps({"address": cluster.manager.address, **words})) as writer,
        ):
            wait_until(cluster.files, "rows to come")
            writer.kill()
            with service.write_part(SCHEMA) as part:
                part.write(rows(10))
            there = cluster.files()
            wait_until(lambda: len(cluster.files()) < len(there), "the lease to end")
            assert ids(service.read_parts([part.finish()])) == list(range(10))
    finally:
        cluster.close()


def test_a_killed_writer_leaves_nothing(external: ExternalProcess) -> None:
    """The host service hears from the kernel that it has gone."""
    conf = {"spark.penstock.external.port": str(external.port)}
    place = Place(str(external.socket), {"conf": conf}, external.folders, lambda: external.pid, external.log)
    there = external.folders()
    with _half_written(place.words) as writer:
        assert len(set(external.folders()) - set(there)) == 1
        writer.kill()
    place.wait_for_no_more_than(there)


def test_a_full_quota_is_an_error_that_says_so(external: ExternalProcess) -> None:
    """The part is given up, and there is room for others."""
    place = Place(str(external.socket), {}, external.folders, lambda: external.pid, external.log)
    conf = {"spark.penstock.external.port": str(external.port)}
    with place.connect(conf=conf) as service:
        with pytest.raises(QuotaError, match="--quota"):
            _begin_eleven(service)
        with service.write_part(SCHEMA) as other:
            other.write(rows(10))
        assert other.finish().rows == (10,)


def test_who_is_not_there_and_who_is_not_known(remote: RemoteCluster, tmp_path: Path) -> None:
    """No socket, a port that nobody has, no manager, and a key of nobody's: an error of its own each."""
    soon = {"spark.penstock.external.retryTimeout": "0.1s", "spark.penstock.remote.retryTimeout": "0.1s"}
    with pytest.raises(NoStorageError, match="penstock service external"):
        client.connect(tmp_path / "no.sock", conf=soon)
    key = remote.keys.read_text().strip()
    with pytest.raises(ControlError, match="does not answer"):
        client.connect("127.0.0.1:1", key=key, conf=soon)
    with pytest.raises(AuthenticationError):
        client.connect(remote.manager.address, user=USER, key="A" * 43, conf=soon)


def test_another_version_is_refused_at_both_ends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's error and the service's log name both versions, over the socket and over the port."""
    ours = f"speaks version {VERSION + 1} of the protocol, this Penstock speaks {VERSION}"
    theirs = f"speaks version {VERSION} of the protocol, this Penstock speaks {VERSION + 1}"
    with place.connect() as service:
        with service.write_part(SCHEMA) as writer:
            writer.write(rows(10))
        if "key" not in place.options:
            monkeypatch.setattr("penstock.connection.handshake.VERSION", VERSION + 1)

            def is_said() -> bool:
                """As of `is_logged`."""
                with pytest.raises(VersionError, match=theirs):
                    place.connect()
                return ours in place.log.read_text()

            wait_until(is_said, "the service to say so")
            monkeypatch.undo()
        monkeypatch.setattr("penstock.connection.handshake.VERSION", VERSION + 1)
        begin = place.log.stat().st_size

        def is_logged() -> bool:
            """Refusals of one second share a line, so they are tried again."""
            with pytest.raises(VersionError, match=theirs):
                service.read_parts([writer.finish()]).read_all()
            return ours in place.log.read_bytes()[begin:].decode()

        wait_until(is_logged, "the service to say so")
        if "key" in place.options:
            with pytest.raises(VersionError, match=theirs):
                place.connect()
        monkeypatch.undo()


def test_a_forked_process_is_told_to_join(place: Place) -> None:
    """It has no thread of the client's, and would wait for ever."""
    with place.connect() as service:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                service.find("numbers")
            except PenstockError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        said = os.read(read, 1000).decode()
        os.close(read)
        assert "penstock.client.join(access)" in said


def test_a_part_that_was_released_can_not_be_kept(external: ExternalProcess) -> None:
    """The error is the service's own."""
    conf = {"spark.penstock.external.port": str(external.port)}
    with client.connect(external.socket, conf=conf) as service:
        with service.write_part(SCHEMA) as writer:
            writer.write(rows(10))
        service.release([writer.finish()])
        with pytest.raises(PenstockError, match="not there any more"):
            service.keep("gone", [writer.finish()])
