# SPDX-License-Identifier: Apache-2.0
"""An operator's slips: what he may do to the folders, the clock and the disk of a process. *Operator* of the grid.

A process ends, something is done, and it is started: it serves what it has, or says what is wrong and ends. Then the
slip is mended, and all rows of before are there. Nothing that lay in a folder is changed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from effort import THOROUGH
from external_harness import ExternalHarness
from external_process import ExternalProcess
from objects_harness import ObjectsHarness
from penstock.testing.conformance_exchange import ConformanceExchange, Producer
from penstock.testing.waiting import wait_until
from remote_cluster import RemoteCluster
from remote_harness import RemoteHarness
from small_disks import small_disk
from underway import listed
from witnesses import BESIDE, MEMORY, Witness

pytestmark = pytest.mark.processes

PATIENCE = 2.0
"""Seconds for which a service may be away, and a log may not be written."""
DAY = 86400
NOBODY = 65534
_OTHER_TIME = """
import time
now = time.time
time.time = lambda: now() + {seconds}
"""


@dataclass
class Operated:
    """A process with its folders, the first of which has its index, and somebody who uses it."""

    user: Witness
    folders: list[Path]
    index: str
    start: Callable[[], None]
    stop: Callable[[], None]
    ends: ExitStack
    order: Callable[[list[Path]], None] = lambda folders: None
    copies: dict[Path, bytes] = field(default_factory=dict)
    """The files of its index as they were before its last rows."""

    def index_files(self) -> list[Path]:
        """The files of its index."""
        return listed(self.folders[0], f"{self.index}*") if self.index else []

    def rows(self) -> dict[Path, bytes]:
        """All files with rows."""
        found = (path for folder in self.folders for path in listed(folder, "**/*") if path.is_file())
        return {
            path: path.read_bytes() for path in found if re.search(r"/data/../|\.merged$|/data$|/index$", str(path))
        }


def external(folder: Path, home: Path) -> Operated:
    """The service of a host."""
    ends, folders = ExitStack(), [home, folder / "second"]
    harness = ExternalHarness(folder, "user", hosts=())
    harness.conf["spark.penstock.external.retryTimeout"] = f"{PATIENCE}s"
    options = ("--reserve", "0", "--memory", f"{MEMORY}m", "--socket", str(folder / "socket"))
    service = ExternalProcess(home, *options, more=folders[1:], log=str(folder / "log"))
    service.socket = folder / "socket"
    harness.hosts |= {"a": service, "b": service}
    user = Witness(ConformanceExchange(harness, asyncio.run), lambda: {"external": service.pid})
    ends.callback(service.kill)
    ends.callback(user.hang_up)

    def order(folders: list[Path]) -> None:
        service.folders_given = folders

    return Operated(user, folders, "catalogue.db", service.start, lambda: print(service.stop()), ends, order)


def remote(folder: Path, home: Path, role: str) -> Operated:
    """A manager and a worker, of which this one is operated."""
    ends, second = ExitStack(), folder / "second"
    options = ["--rejoin", "30s"]
    cluster = RemoteCluster(folder, 0, manager_options=options, manager=home if role == "manager" else None)
    ends.callback(cluster.close)
    place = home if role == "worker" else folder / "worker"
    worker = cluster.add_worker(place, ["--dir", str(second), "--memory", f"{MEMORY}m"])
    conf = {f"spark.penstock.remote.{name}Timeout": f"{PATIENCE}s" for name in ("retry", "request")}
    harness = RemoteHarness(cluster, "user", conf)
    ends.callback(harness.close)
    both = {"manager": cluster.manager, "worker": worker}
    user = Witness(
        ConformanceExchange(harness, asyncio.run),
        lambda: {name: each.pid for name, each in both.items() if each.process is not None},
    )
    ends.callback(user.hang_up)
    operated = both[role]

    def order(folders: list[Path]) -> None:
        places = [at + 1 for at, word in enumerate(operated.arguments) if word == "--dir"]
        for at, each in zip(places, folders, strict=True):
            operated.arguments[at] = str(each)

    def start() -> None:
        times = cluster.times_known()
        operated.start()

        def is_known() -> bool:
            assert operated.process is not None
            assert operated.process.poll() is None, operated.log.read_text()[-3000:]
            return cluster.times_known() > times

        wait_until(is_known, "the manager to know its worker")

    folders = [home] if role == "manager" else [home, second]
    index = "manager.log" if role == "manager" else "index.sqlite"
    return Operated(user, folders, index, start, operated.kill, ends, order)


def objects(folder: Path, home: Path) -> Operated:
    """No process: a folder in which tasks keep objects."""
    ends = ExitStack()
    harness = ObjectsHarness(str(home), "user")
    ends.callback(harness.close)
    user = Witness(ConformanceExchange(harness, asyncio.run), dict)
    ends.callback(user.hang_up)
    return Operated(user, [home], "", lambda: None, lambda: None, ends)


Slip = Callable[[Operated, pytest.MonkeyPatch], AbstractContextManager[None]]


@contextmanager
def away(path: Path) -> Iterator[None]:
    """An empty folder is there instead."""
    aside = path.with_name(f"{path.name}-aside")
    path.rename(aside)
    path.mkdir(0o755)
    try:
        yield
    finally:
        shutil.rmtree(path)
        aside.rename(path)


def second_unmounted(service: Operated, patch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    """A disk is not mounted."""
    return away(service.folders[-1])


def first_unmounted(service: Operated, patch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
    """The disk with the index is not mounted."""
    return away(service.folders[0])


@contextmanager
def other_order(service: Operated, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folders are given in another order."""
    service.order(service.folders[::-1])
    yield
    service.order(service.folders)


@contextmanager
def index_lost(service: Operated, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files of the index are gone, and put back."""
    there = {path: path.read_bytes() for path in service.index_files()}
    for path in there:
        path.unlink()
    yield
    put_back(service, there)


@contextmanager
def index_old(service: Operated, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files of the index are those of before the last rows."""
    there = {path: path.read_bytes() for path in service.index_files()}
    put_back(service, service.copies)
    yield
    put_back(service, there)


def put_back(service: Operated, files: dict[Path, bytes]) -> None:
    """The index has these files and no others."""
    for path in service.index_files():
        path.unlink()
    for path, data in files.items():
        path.write_bytes(data)
        path.chmod(0o600)


@contextmanager
def others_may_write(service: Operated, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The last folder is everybody's, or another user's where the tests are root's."""
    folder = service.folders[-1]
    mode = folder.stat().st_mode
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    else:
        folder.chmod(0o777)
    yield
    os.chown(folder, os.getuid(), os.getgid())
    folder.chmod(mode)


def clock_off(seconds: int) -> Slip:
    """The clock is so far off."""

    @contextmanager
    def other_time(service: Operated, patch: pytest.MonkeyPatch) -> Iterator[None]:
        seam = service.folders[0].with_name("seam")
        seam.mkdir(exist_ok=True)
        (seam / "sitecustomize.py").write_text(_OTHER_TIME.format(seconds=seconds))
        with patch.context() as patched:
            patched.setenv("PYTHONPATH", str(seam), prepend=":")
            yield

    return other_time


@contextmanager
def no_space(service: Operated, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The disk of the index has no byte left."""
    with fill(service.folders[0]):
        yield


@contextmanager
def fill(disk: Path) -> Iterator[None]:
    """Somebody else's file that leaves no room."""
    path = disk / "somebody's"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4 << 10))
    yield
    path.unlink()


@dataclass(frozen=True)
class OperatorCell:
    """A slip at a process: the words with which it ends, if it does not start, and whether it keeps all rows."""

    fault: str
    process: str
    slip: Slip
    ends_with: str = ""
    keeps: bool = False
    runs_on: bool = False
    """True for what is done while it runs."""
    in_short: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.fault} of {self.process}: {self.slip.__name__}"


LOST = "Nothing was removed"
OWNER = "belongs to user" if os.getuid() == 0 else "others may use it"
CELLS = [
    OperatorCell("disk unmounted", "external", second_unmounted, in_short=True),
    OperatorCell("disk unmounted", "external", first_unmounted),
    OperatorCell("order of folders", "external", other_order, keeps=True),
    OperatorCell("index lost", "external", index_lost, LOST),
    OperatorCell("old copy of an index", "external", index_old, in_short=True),
    OperatorCell("other owner", "external", others_may_write, OWNER),
    OperatorCell("clock a day off", "external", clock_off(DAY), keeps=True),
    OperatorCell("clock a day off", "external", clock_off(-DAY), keeps=True),
    OperatorCell("no space for the log", "external", no_space, keeps=True, runs_on=True, in_short=True),
    OperatorCell("no space for the log", "external", no_space, "See that its disk has room"),
    OperatorCell("index lost", "manager", index_lost),
    OperatorCell("old copy of an index", "manager", index_old, in_short=True),
    OperatorCell("other owner", "manager", others_may_write, OWNER),
    OperatorCell("clock a day off", "manager", clock_off(DAY), keeps=True),
    OperatorCell("clock a day off", "manager", clock_off(-DAY), keeps=True),
    OperatorCell("no space for the log", "manager", no_space, keeps=True, runs_on=True),
    OperatorCell("disk unmounted", "worker", second_unmounted, in_short=True),
    OperatorCell("disk unmounted", "worker", first_unmounted),
    OperatorCell("order of folders", "worker", other_order, keeps=True),
    OperatorCell("index lost", "worker", index_lost, LOST),
    OperatorCell("old copy of an index", "worker", index_old, "a copy of its folder has been started since"),
    OperatorCell("other owner", "worker", others_may_write, OWNER),
    OperatorCell("clock a day off", "worker", clock_off(DAY), keeps=True),
    OperatorCell("clock a day off", "worker", clock_off(-DAY), keeps=True),
    OperatorCell("no space for the log", "worker", no_space, keeps=True, runs_on=True),
    OperatorCell("disk unmounted", "objects", first_unmounted, in_short=True),
]
CHOSEN = [cell for cell in CELLS if THOROUGH or cell.in_short]
PROCESSES = list(dict.fromkeys(cell.process for cell in CHOSEN))


@pytest.mark.parametrize("process", PROCESSES)
def test_an_operator_s_slip_costs_nobody_a_row(process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slip at this process, one after the other; and all rows once it is mended."""
    makes = {"external": external, "objects": objects}
    with small_disk(tmp_path / "home", 16) as disk:
        home = disk / "first"
        folder = tmp_path / "service"
        folder.mkdir()
        service = makes[process](folder, home) if process in makes else remote(folder, home, process)
        with service.ends:
            old = [service.user.write()]
            service.user.hang_up()
            service.copies = {path: path.read_bytes() for path in service.index_files()}
            old.append(service.user.write())
            service.user.trip()
            began, before = service.user.most_memory(), service.rows()
            for cell in CHOSEN:
                if cell.process == process:
                    run_cell(service, cell, old, monkeypatch)
                    after = service.rows()
                    changed = [path for path, rows in before.items() if not after.get(path, b"").startswith(rows)]
                    assert not changed, f"{cell.name}: these have other rows"
            grown = {name: most - began[name] for name, most in service.user.most_memory().items()}
            print(f"MiB: {grown}")
            assert max(grown.values(), default=0) <= MEMORY + BESIDE, grown


def run_cell(service: Operated, cell: OperatorCell, old: list[Producer], patch: pytest.MonkeyPatch) -> None:
    """A slip, and its end."""
    user = service.user
    alone = max(user.trips)
    if not cell.runs_on:
        service.stop()
    with cell.slip(service, patch):
        if cell.runs_on:
            pass
        elif cell.ends_with:
            with pytest.raises(AssertionError, match=f"penstock: .*{cell.ends_with}"):
                service.start()
        else:
            service.start()
        found = [user.outcome(lambda each=each: user.read(each)) for each in old]
        began = time.monotonic()
        new = user.outcome(user.write)
        seconds = time.monotonic() - began
        print(f"{cell.name}: {[type(each).__name__ for each in found]}, new {type(new).__name__} in {seconds:.1f} s")
        assert not cell.keeps or not any(found), found
        assert not THOROUGH or seconds <= alone + 2.0 + (PATIENCE if new else 0.0)
        if not cell.runs_on:
            service.stop()
    if not cell.runs_on:
        service.start()
    for each in old:
        user.read(each)
    user.hang_up()
