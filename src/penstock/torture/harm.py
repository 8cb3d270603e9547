# SPDX-License-Identifier: Apache-2.0
"""Harm to a running job from outside, and a look at what is left when everything has been stopped. Linux only."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.bench.environment import environment_pids
from penstock.network.rendezvous import rendezvous

_GRACE_SECONDS = 15.0


class Harm:
    """Strikes once, `after` seconds from the start of a `with` block, unless the block is over by then."""

    def __init__(self, spark: Any, kind: str, after: float) -> None:
        self._spark = spark
        self._kind = kind
        self._after = after
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
        for pid in sorted(pids)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def worker_pids() -> list[int]:
    """The Python workers below this process's JVM, without the daemons that fork them."""
    parents = _parents()
    workers = {pid for pid in _descendants(os.getpid(), parents) if b"pyspark.worker" in _command(pid)}
    return sorted(pid for pid in workers if parents[pid] in workers)


def leftovers(application: str, name: str) -> list[str]:
    """What there is still of a stopped application after some grace; `name` is the JobMaster's name of it."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := _left(application, name)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _left(application: str, name: str) -> list[str]:
    left = [f"environment process {pid}" for pid in environment_pids(application)]
    left += [f"worker process {pid}" for pid in worker_pids()]
    folder = rendezvous(name).folder
    return left + ([f"folder {folder}"] if folder.exists() else [])


def _parents() -> dict[int, int]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _descendants(pid: int, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
