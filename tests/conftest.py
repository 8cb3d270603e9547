# SPDX-License-Identifier: Apache-2.0
"""Every test leaves nothing behind: no process, thread, file descriptor, shared memory or rendezvous folder.

Each run has a temporary folder of its own (so that runs beside each other do not see each other's environment
processes) and a mark in the process environment that all its descendants inherit, detached ones too. A test
that leaves something gets a few seconds for what is on its way out, then fails at its teardown. Tests marked
`spark` share one session, so they are checked together, at the end of the run, like the run as a whole.

Tolerated, and why: the JVM that PySpark keeps until the interpreter ends, and multiprocessing's own helper
processes, which it keeps on purpose; file descriptors that a library opens once per process (see `_ONCE`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil
import pytest

MARK = "PENSTOCK_TEST_RUN"
GRACE_SECONDS = 8.0
LAYERS = {"processes": 1, "spark": 2}

_PROC = Path("/proc")
_SHM = Path("/dev/shm")
_KEPT_PROCESSES = re.compile(
    r"multiprocessing\.(resource_tracker|forkserver)|org\.apache\.spark\.deploy\.SparkSubmit"
)
_ONCE = re.compile(r"^(/dev/u?random|/dev/null|anon_inode:\[(eventpoll|eventfd)\]|/sys/|/proc/|.*\.(so|jar|pyc?)\b)")
"""Random devices, null, and gRPC's process-wide poller are opened on first use and kept; code files likewise."""


def _isolate() -> Path:
    """Give this run a temporary folder of its own, short enough for Unix sockets; pytest keeps the usual one."""
    usual = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    own = Path(tempfile.mkdtemp(prefix="pt-", dir=usual))
    os.environ["TMPDIR"] = str(own)
    os.environ[MARK] = uuid.uuid4().hex
    tempfile.tempdir = None
    return own


RUN_FOLDER = _isolate()


@dataclass(frozen=True)
class Holdings:
    """What this run holds at one moment; each item is named so that a leak says what it is."""

    processes: frozenset[int]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[str]
    mappings: int
    shared: frozenset[str]
    rendezvous: frozenset[str]

    @classmethod
    def now(cls) -> Holdings:
        """Look around."""
        return cls(_processes(), _threads(), _descriptors(), _memfd_mappings(), _shared(), _rendezvous())

    def leaks_since(self, before: Holdings) -> list[str]:
        """What is here now and was not before."""
        leaks = [f"process {_describe(pid)}" for pid in self.processes - before.processes]
        leaks += [f"thread {thread.name}" for thread in self.threads - before.threads]
        leaks += [f"file descriptor {item}" for item in self.descriptors - before.descriptors]
        leaks += [f"shared memory {item}" for item in self.shared - before.shared]
        leaks += [f"rendezvous folder {item}" for item in self.rendezvous - before.rendezvous]
        if self.mappings > before.mappings:
            leaks.append(f"{self.mappings - before.mappings} mappings of a penstock memfd")
        return sorted(leaks)


def _processes() -> frozenset[int]:
    """Our children, and all processes that carry the run's mark, wherever they were re-parented."""
    found = set()
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for folder in _PROC.iterdir() if _PROC.exists() else ():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            is_ours = parent == os.getpid() or mark in (folder / "environ").read_bytes()
        except OSError:
            continue
        if is_ours and not _KEPT_PROCESSES.search(_command(folder)):
            found.add(int(folder.name))
    return frozenset(found)


def _command(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_bytes().replace(b"\x00", b" ").decode(errors="replace")
    except OSError:
        return ""


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{pid} ({process.status()}): {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return f"{pid} (just ended)"


def _threads() -> frozenset[threading.Thread]:
    return frozenset(thread for thread in threading.enumerate() if not thread.daemon)


def _descriptors() -> frozenset[str]:
    """Open descriptors by number and target; an inherited number with another target is another descriptor."""
    found = set()
    folder = _PROC / "self" / "fd"
    for entry in list(folder.iterdir()) if folder.exists() else ():
        try:
            target = entry.readlink()
        except OSError:
            continue
        if not _ONCE.match(str(target)):
            found.add(f"{entry.name} -> {target}")
    return frozenset(found)


def _memfd_mappings() -> int:
    maps = _PROC / "self" / "maps"
    return sum("memfd:penstock" in line for line in maps.read_text().splitlines()) if maps.exists() else 0


def _shared() -> frozenset[str]:
    """Our own files in shared memory."""
    found = set()
    for path in _SHM.iterdir() if _SHM.exists() else ():
        try:
            if path.stat().st_uid == os.getuid():
                found.add(path.name)
        except OSError:
            continue
    return frozenset(found)


def _rendezvous() -> frozenset[str]:
    folder = RUN_FOLDER / f"penstock-{os.getuid()}"
    return frozenset(path.name for path in folder.iterdir()) if folder.exists() else frozenset()


def _leaks_since(before: Holdings) -> list[str]:
    """What stays after garbage was collected and the grace has passed."""
    leaks = Holdings.now().leaks_since(before)
    end = time.monotonic() + GRACE_SECONDS
    pause = threading.Event()
    while leaks and time.monotonic() < end:
        gc.collect()
        pause.wait(0.02)
        leaks = Holdings.now().leaks_since(before)
    return leaks


@pytest.fixture(scope="session", autouse=True)
def nothing_left_by_the_run() -> Iterator[None]:
    """The whole run, Spark's part included, leaves nothing."""
    before = Holdings.now()
    yield
    if leaks := _leaks_since(before):
        pytest.fail("the test run left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture(autouse=True)
def nothing_left_by_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves nothing; those that share a Spark session are checked at the end of the run."""
    if request.node.get_closest_marker("spark") is not None:
        yield
        return
    before = Holdings.now()
    yield
    if leaks := _leaks_since(before):
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pure tests first, then those with processes, then those with Spark: the cheap answers come early."""
    items.sort(key=lambda item: max((LAYERS.get(mark.name, 0) for mark in item.iter_markers()), default=0))


def pytest_configure(config: pytest.Config) -> None:
    """A run that is told to end, as by a time limit, ends like an interrupted one: with its teardowns."""
    own = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # a fork of a test has no teardowns to run
            os._exit(128 + number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, end)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The run's temporary folder goes with the run, and so does what leaked (it has been reported by now)."""
    for pid in _processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(RUN_FOLDER, ignore_errors=True)
