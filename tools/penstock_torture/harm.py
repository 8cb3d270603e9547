# SPDX-License-Identifier: Apache-2.0
"""Harm to a running job from outside, and a look at what is left when everything has been stopped. Linux only."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.link.rendezvous import base_folder
from penstock_bench.environment import environment_pids
from penstock_bench.workers import worker_pids

_GRACE_SECONDS = 15.0


class Harm:
    """Strikes once, `after` seconds from the start of a `with` block, unless the block is over by then.

    `pick` from 0 to 1 says which of the processes that may be struck it is.
    """

    def __init__(self, spark: Any, kind: str, after: float, pick: float = 0.0) -> None:
        self._spark = spark
        self._kind = kind
        self._after = after
        self._pick = pick
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-torture-harm", daemon=True)
        self.struck = False

    def __enter__(self) -> Harm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        if self._over.wait(self._after) or self._kind not in ("worker", "environment", "cancel"):
            return
        self.struck = True
        context = self._spark.sparkContext
        if self._kind == "cancel":
            context.cancelAllJobs()
            return
        pids = environment_pids(context.applicationId) if self._kind == "environment" else worker_pids()
        if pids:
            with suppress(ProcessLookupError):
                os.kill(sorted(pids)[int(self._pick * len(pids))], signal.SIGKILL)


def ancestor(pid: int, name: str) -> int:
    """The nearest process above this one whose program has this name; 0 where there is none."""
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command, _, rest = stat.partition("(")[2].rpartition(")")
        if command == name:
            return pid
        pid = int(rest.split()[1])
    return 0


def kill_a_worker(chance: random.Random) -> int:
    """Kill a Python worker, whichever chance picks; 1, or 0 where there is none."""
    pids = worker_pids()
    if not pids:
        return 0
    with suppress(ProcessLookupError):
        os.kill(chance.choice(pids), signal.SIGKILL)
    return 1


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[None]:
    """For a `with` block, this process and those it starts have a temporary folder that nobody else writes to."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        try:
            yield
        finally:
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before
            tempfile.tempdir = None


def leftovers(application: str) -> list[str]:
    """The things left of a stopped application after some grace; in a temporary folder of its own."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := _left(application)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _left(application: str) -> list[str]:
    left = [f"environment process {pid}" for pid in environment_pids(application)]
    left += [f"worker process {pid}" for pid in worker_pids()]
    base = base_folder()
    return left + [f"folder {path}" for path in (base.iterdir() if base.exists() else ())]


def marked_pids(mark: str) -> list[int]:
    """The processes that live and have this `NAME=value` in the environment that they were started with."""
    wanted = f"{mark}\0".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                is_dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not is_dead and wanted in (folder / "environ").read_bytes() + b"\0":
                    found.append(int(folder.name))
    return found


def kill_marked(mark: str, first: subprocess.Popen[bytes]) -> None:
    """Kill the processes with this mark, however often they start others meanwhile; `first` is a child of ours."""
    while pids := marked_pids(mark):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        first.poll()
        time.sleep(0.02)
    first.wait()
