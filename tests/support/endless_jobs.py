# SPDX-License-Identifier: Apache-2.0
"""Jobs without an end, to be killed: stages that leave marks, an action on a thread, and a look whether all works."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

import penstock
from penstock.testing import DEADLINE
from session_probe import mark, marks

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def lives(pid: int) -> bool:
    """Tell whether this process runs; one that nobody has reaped does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def forked_child(folder: str, forks: str) -> None:
    """Leave a child behind that holds whatever it inherited, until `release` appears."""

    def linger() -> None:
        mark(f"{folder}/children")
        end = time.monotonic() + DEADLINE
        while not Path(folder, "release").exists() and time.monotonic() < end:
            time.sleep(0.02)

    if forks == "fork":
        if os.fork() == 0:
            linger()
            os._exit(0)
    elif forks == "multiprocessing":
        import multiprocessing

        multiprocessing.get_context("fork").Process(target=linger).start()


def endless(folder: str, forks: str = "") -> Stage:
    """A producer that repeats its input until it is stopped."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept = list(batches)
        forked_child(folder, forks)
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            yield from kept
            mark(f"{folder}/producers")
            time.sleep(0.002)
        raise TimeoutError("nobody stopped this stage")

    return stage


def watching(folder: str, forks: str = "") -> Stage:
    """A consumer that leaves a mark at its first batch, and `ended` if its input ever ends."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forked_child(folder, forks)
        for batch in batches:
            mark(f"{folder}/consumers")
            yield batch
        Path(folder, "ended").touch()

    return stage


class Action:
    """An action on a thread of its own."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.outcome: Any = None
        self.ended = 0.0
        self._act = act
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait(self, seconds: float = DEADLINE) -> Any:
        """The outcome of the action."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the action hangs"
        return self.outcome

    def _run(self) -> None:
        try:
            self.outcome = self._act()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.outcome = error
        self.ended = time.monotonic()


def running(folder: Path) -> bool:
    """Tell whether both ends of the exchange have seen data."""
    return len(marks(folder / "producers")) >= 2 and len(marks(folder / "consumers")) >= 2


def all_slots_work(spark: Any) -> None:
    """A job that needs every slot of the session."""
    source = spark.range(0, 1000, 1, 2)
    assert penstock.repartition(source, 6, "id").count() == 1000
