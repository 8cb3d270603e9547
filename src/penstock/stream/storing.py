# SPDX-License-Identifier: Apache-2.0
"""The thread of a stream task that stores its snapshots while the task goes on.

A snapshot consists of immutable values; here they become bytes, are written, and are acknowledged. Rows in flight
that the restored checkpoint holds are referred to. A snapshot that can't be stored is declined with the reason, and
the task goes on: whether the query may is the coordinator's matter.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.checkpoint.metadata import pack_part
from penstock.checkpoint.ownership import Stamp
from penstock.checkpoint.storage import PartStorage
from penstock.shuffle.streaming import TaskLine
from penstock.stream.chain import Chunk
from penstock.stream.in_flight import SavedChannel, pieces_of

_JOIN_SECONDS = 1.0
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """One snapshot to be stored: its checkpoint, its chunks, what taking it took, and rows in flight."""

    checkpoint: int
    chunks: Sequence[Chunk]
    figures: dict[str, float] = field(default_factory=dict)
    channels: Sequence[SavedChannel] = ()


class SnapshotStore:
    """Stores one task's snapshots, one after the other; `part` is the task's name in checkpoints."""

    def __init__(self, location: str, epoch: int, part: str, line: TaskLine) -> None:
        self._location = location
        self._epoch = epoch
        self._part = part
        self._line = line
        self._storage: PartStorage | None = None
        self._queue: queue.SimpleQueue[TakenSnapshot | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._given_up: frozenset[int] = frozenset()
        """Replaced by the task's thread, never changed: the storing thread only looks."""

    def store(self, snapshot: TakenSnapshot) -> None:
        """Store it as soon as the ones before it are stored."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"penstock-store-{self._part}", daemon=True)
            self._thread.start()
        self._queue.put(snapshot)

    def give_up(self, checkpoint: int) -> None:
        """It is not needed any more, if it is not under way already."""
        if self._thread is not None:
            self._given_up = frozenset(sorted({*self._given_up, checkpoint})[-_REMEMBERED:])

    def close(self) -> None:
        """Store no more; a write that is under way is left to its end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while (snapshot := self._queue.get()) is not None:
            if snapshot.checkpoint not in self._given_up:
                self._store(snapshot)

    def _store(self, snapshot: TakenSnapshot) -> None:
        began = time.monotonic()
        stamp = Stamp(snapshot.checkpoint, self._epoch)
        try:
            if self._storage is None:
                self._storage = PartStorage(self._location)
            state = ((name, make()) for name, make in snapshot.chunks)
            rows = (piece for channel in snapshot.channels for piece in pieces_of(channel))
            handle = self._storage.write(stamp, self._part, itertools.chain(state, rows))
        except Exception as error:  # noqa: BLE001 - a checkpoint is declined, the task goes on
            self._line.decline(snapshot.checkpoint, f"{self._part}: {type(error).__name__}: {error}")
            return
        figures = {**snapshot.figures, "bytes": float(handle.size), "store_seconds": time.monotonic() - began}
        self._line.acknowledge(snapshot.checkpoint, pack_part(handle), figures)
