# SPDX-License-Identifier: Apache-2.0
"""The holdings of a run of tests at a moment: processes, threads, descriptors, shared memory, rendezvous folders.

A run has a temporary folder of its own, so that runs beside each other do not see each other's environment
processes, and a mark in the process environment that all its descendants inherit, detached ones too. A worker of
a run on several processes has its own folder inside the run's and its own mark, which begins with the run's.

Shared memory is a memfd, which descriptors and mappings show. Names in `/dev/shm` are everybody's: no code of ours
makes one (`tests/house/test_busy_machines.py`), and nothing here looks at them.

Tolerated, and why: the JVM that PySpark keeps until the interpreter ends, and multiprocessing's own helper processes,
which it keeps on purpose; connections with that JVM, of which PySpark keeps one for each thread on either side; an
environment process in the place of one of its application that was there and is gone, as one that lost its lease on a
busy machine: whoever has the cluster ends it, and is looked at; file descriptors that a library opens once per
process (see `_ONCE` and `first_use`); the three standard descriptors, which pytest moves to and fro between a file of
its own and where the output goes.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

MARK = "PENSTOCK_TEST_RUN"
GRACE_SECONDS = 120.0

_PROC = Path("/proc")
_STANDARD = {"0", "1", "2"}
_ENVIRONMENT = " penstock.environment "
_KEPT_PROCESSES = re.compile(
    r"multiprocessing\.(resource_tracker|forkserver)|org\.apache\.spark\.deploy\.SparkSubmit"
)
_ONCE = re.compile(r"^(/dev/(u?random|null)|anon_inode:\[(eventpoll|eventfd)\]|/sys/|/proc(/|$)|.*\.(so|jar|pyc?)\b)")
"""Random devices, null, and uvloop's pollers are opened on first use and kept; code files likewise."""
_MARKED = re.compile(rb"(?:^|\0)" + MARK.encode() + rb"=([^\0]*)")
_SOCKET = " -> socket:"
_INODE = re.compile(r"^(socket|pipe):\[\d+\]$")


def _isolate() -> Path:
    """Give this process a temporary folder of its own, short enough for Unix sockets; pytest keeps the usual one."""
    usual = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    own = Path(tempfile.mkdtemp(prefix="pt-" if MARK not in os.environ else "", dir=usual))
    os.environ["TMPDIR"] = str(own)
    os.environ[MARK] = f"{os.environ.get(MARK, '')}/{uuid.uuid4().hex}"
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # else each of the many processes compiles what it imports
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(Path(sys.prefix) / "compiled")
        sys.dont_write_bytecode = False
    tempfile.tempdir = None
    return own


def _names(folder: Path) -> list[str]:
    """The names in a folder that may be missing; each test asks often, so no path is made of each."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


def content(path: str) -> bytes:
    """A small file of the kernel, in one piece: a sixth of the time of `Path.read_bytes`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pieces = []
        while piece := os.read(descriptor, 1 << 16):
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces)


def _living() -> set[str]:
    return {name for name in _names(_PROC) if name.isdigit()}


RUN_FOLDER = _isolate()
_STRANGERS = _living()
"""Processes that are not ours: older ones, and those of other pytest processes. An end takes a number off, since it
may be given again."""


@dataclass(frozen=True)
class Holdings:
    """The holdings of this run at one moment; each item is named so that a leak says what it is."""

    processes: Mapping[int, str]
    """Their command lines, by number."""
    threads: frozenset[threading.Thread]
    descriptors: frozenset[str]
    mappings: int
    rendezvous: frozenset[str]

    @classmethod
    def now(cls) -> Holdings:
        """Look around."""
        return cls(processes(), _threads(), open_descriptors(), _memfd_mappings(), _rendezvous())

    def leaks_since(self, before: Holdings) -> list[str]:
        """The things that are here now and were not before."""
        leaks = [f"process {_describe(pid)}" for pid in self._new_processes(before)]
        leaks += [f"thread {thread.name}" for thread in self.threads - before.threads]
        leaks += [f"file descriptor {item}" for item in _unknown(self.descriptors - before.descriptors)]
        leaks += [f"rendezvous folder {item}" for item in self.rendezvous - before.rendezvous]
        if self.mappings > before.mappings:
            leaks.append(f"{self.mappings - before.mappings} mappings of a penstock memfd")
        return sorted(leaks)

    def _new_processes(self, before: Holdings) -> list[int]:
        """Those that were not there before, and are no environment in the place of one that was."""
        gone = Counter(
            command
            for pid, command in before.processes.items()
            if pid not in self.processes and _ENVIRONMENT in command
        )
        found = []
        for pid in sorted(self.processes.keys() - before.processes.keys()):
            command = self.processes[pid]
            if gone[command]:
                gone[command] -= 1
            else:
                found.append(pid)
        return found


_KEPT: set[str] = set()


def first_use(library: Callable[[], object]) -> None:
    """Call what makes a library open descriptors that it keeps until the process ends: these are no leak."""
    before = open_descriptors()
    library()
    _KEPT.update(open_descriptors() - before)


def _unknown(descriptors: frozenset[str]) -> set[str]:
    """Those that are not kept by a library; one that a library duplicated later is the same pipe or socket."""
    kept = {_target(item) for item in _KEPT}
    return {item for item in descriptors - _KEPT if not (_INODE.match(_target(item)) and _target(item) in kept)}


def _target(descriptor: str) -> str:
    return descriptor.partition(" -> ")[2]


def leaks_since(before: Holdings) -> list[str]:
    """The things that stay after garbage was collected and the grace has passed, but for connections of others.

    Those are the JVM's, and those that came to who listened before: anybody may call there, and be refused.
    """
    leaks = Holdings.now().leaks_since(before)
    end = time.monotonic() + GRACE_SECONDS
    pause, seconds = threading.Event(), 0.01
    while leaks and (leaks := _own(leaks, before)) and time.monotonic() < end:
        gc.collect()
        pause.wait(seconds)
        seconds = min(2 * seconds, 1.0)
        leaks = Holdings.now().leaks_since(before)
    return described(leaks)


def described(leaks: list[str]) -> list[str]:
    """Say of sockets what they connect, and which object has them."""
    found = []
    for leak in leaks:
        name, is_socket, _ = leak.partition(_SOCKET)
        found.append(f"{leak} ({_of_socket(int(name.rpartition(' ')[2]))})" if is_socket else leak)
    return found


def _own(leaks: list[str], before: Holdings) -> list[str]:
    if not any(_SOCKET in leak for leak in leaks):
        return leaks
    own = {f"file descriptor {item.fd}": item for item in psutil.Process().net_connections("inet")}
    ends = _ends_of_java()
    earlier = {f"file descriptor {item}".partition(_SOCKET)[0] for item in before.descriptors}
    doors = {_address(own[name].laddr) for name in own.keys() & earlier if own[name].status == psutil.CONN_LISTEN}

    def is_of_others(leak: str) -> bool:
        connection = own.get(leak.partition(_SOCKET)[0])
        return connection is not None and (_address(connection.raddr) in ends or _address(connection.laddr) in doors)

    return [leak for leak in leaks if not is_of_others(leak)]


def _of_socket(number: int) -> str:
    """Kind and ends of a socket, and the objects that have it: a library that is not Python's has none."""
    try:
        twin = socket.socket(fileno=os.dup(number))
    except OSError as error:
        return f"closed meanwhile: {error}"
    with twin:
        said = f"{twin.family.name} {twin.type.name}, from {_end(twin.getsockname)} to {_end(twin.getpeername)}"
    owners = []
    for item in gc.get_objects():
        if isinstance(item, socket.socket) and item.fileno() == number:
            owners += [f"{type(owner).__module__}.{type(owner).__qualname__}" for owner in _holders(item)]
            owners.append(f"timeout {item.gettimeout()}")
    return f"{said}; held by {', '.join(owners) or 'no Python socket'}"


def _holders(item: object) -> list[object]:
    """The objects that refer to one, through their attributes or by themselves."""
    direct = [owner for owner in gc.get_referrers(item) if not isinstance(owner, FrameType | list)]
    behind = [again for owner in direct if isinstance(owner, dict) for again in gc.get_referrers(owner)]
    return [owner for owner in (*direct, *behind) if not isinstance(owner, dict | FrameType | list)][:5]


def _end(name: Callable[[], object]) -> object:
    """One end of a socket, or why it has none."""
    try:
        return name() or "no name"
    except OSError as error:
        return error.strerror


def _ends_of_java() -> set[str]:
    """Addresses at which the JVM of PySpark listens or is connected."""
    ends = set()
    for child in psutil.Process().children():
        try:
            if _KEPT_PROCESSES.search(" ".join(child.cmdline())):
                ends |= {_address(item.laddr) for item in child.net_connections("inet")}
        except psutil.Error:
            continue
    return ends


def _address(end: Any) -> str:
    """As `127.0.0.1:4040`, of an end that Java calls `::ffff:127.0.0.1` too; empty where nothing is connected."""
    return f"{end.ip.removeprefix('::ffff:')}:{end.port}" if end else ""


def processes() -> dict[int, str]:
    """The commands of our children, and of all processes that carry the run's mark, wherever their parent is."""
    found = {pid: _command(_PROC / str(pid)) for pid in descendants()}
    return {pid: command for pid, command in found.items() if not _KEPT_PROCESSES.search(command)}


def descendants() -> set[int]:
    """The same with the processes that are kept on purpose."""
    living = _living()
    _STRANGERS.intersection_update(living)
    found = set()
    own = os.environ[MARK].encode()
    for name in living - _STRANGERS:
        if int(name) == os.getpid():
            continue
        try:
            parent = int(content(f"{_PROC}/{name}/stat").rpartition(b")")[2].split()[1])
            mark = _MARKED.search(content(f"{_PROC}/{name}/environ"))
        except OSError:
            continue
        if parent == os.getpid() or (mark is not None and mark[1].startswith(own)):
            found.add(int(name))
        elif mark is not None and not own.startswith(mark[1]):  # a fork of ours has the run's until it is a program
            _STRANGERS.add(name)
    return found


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


def maps_of(descriptor: int) -> int:
    """The number of times that this process maps the file behind a descriptor."""
    inode = str(os.fstat(descriptor).st_ino)
    return sum(line.split()[4] == inode for line in Path("/proc/self/maps").read_text().splitlines())


def open_descriptors() -> frozenset[str]:
    """Open descriptors by number and target; an inherited number with another target is another descriptor."""
    found = set()
    folder = _PROC / "self" / "fd"
    for name in _names(folder):
        try:
            target = str((folder / name).readlink())
        except OSError:
            continue
        if name not in _STANDARD and not _ONCE.match(target):
            found.add(f"{name} -> {target}")
    return frozenset(found)


_MAPPED = (b"", 0)
"""The size of the address space, and how many of its mappings are memory of ours."""


def _memfd_mappings() -> int:
    """Counted again where the size has changed: the list of a process that has imported much takes a millisecond."""
    global _MAPPED
    size = content(f"{_PROC}/self/statm").partition(b" ")[0]
    if size != _MAPPED[0]:
        _MAPPED = size, content(f"{_PROC}/self/maps").count(b"memfd:penstock")
    return _MAPPED[1]


def _rendezvous() -> frozenset[str]:
    return frozenset(_names(RUN_FOLDER / f"penstock-{os.getuid()}"))
