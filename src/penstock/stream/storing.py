# SPDX-License-Identifier: Apache-2.0
"""The thread of a stream task that stores its snapshots while the task goes on.

A snapshot consists of immutable values; here they become bytes, are written, and are acknowledged. Rows in flight
that the restored checkpoint holds are referred to. A snapshot that can't be stored is declined with the reason, and
the task goes on: whether the query may is the coordinator's matter.

A snapshot whose barrier overtook rows, and that is not large, is handed over to the host's store, which puts it into
one file with those of the host's other tasks. If that could not store one, the task stores all further ones.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.checkpoint.metadata import Chunk as Referred
from penstock.checkpoint.metadata import PartHandle, pack_part
from penstock.checkpoint.part_memory import PartMemory
from penstock.checkpoint.stamps import Stamp
from penstock.checkpoint.storage import Content, PartStorage, append
from penstock.checkpoint.storage import pieces_of as parts_of
from penstock.shuffle.streaming import HandedPart, HostStore, Mailbox
from penstock.stream.chain import Chunk
from penstock.stream.in_flight import SavedChannel, pieces_of
from penstock.stream.row_log import LogCut

SHARED_BYTES: Final = 1 << 20
"""A larger snapshot has a file of its own: it costs little beside its bytes, and several are written at once."""
_Made = tuple[str, Content | Referred]
"""A chunk with its bytes, or where an earlier checkpoint holds them."""
_JOIN_SECONDS = 1.0
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """One snapshot to be stored: its checkpoint, its chunks, what taking it took, and rows in flight."""

    checkpoint: int
    chunks: Sequence[Chunk]
    figures: dict[str, float] = field(default_factory=dict)
    channels: Sequence[SavedChannel] = ()
    shares_file: bool = False
    """True if it may lie in one file with other tasks' snapshots."""
    log: LogCut | None = None
    """The log at this snapshot, if rows are logged."""


class SnapshotStore:
    """Stores one task's snapshots, one after the other; `part` is the task's name in checkpoints.

    Without a `host` each snapshot has a file of its own.
    """

    def __init__(self, location: str, owner: str, part: str, mailbox: Mailbox, host: HostStore | None = None) -> None:
        self._location = location
        self._owner = owner
        self._part = part
        self._mailbox = mailbox
        self._host = host
        self._shares = host is not None
        """True if the host's store has stored all that it was given. To leave it is another matter."""
        self._handed: dict[int, PartMemory] = {}
        """Snapshots that the host's store has not answered for, by checkpoint."""
        if host is not None:
            host.share_files(location, owner)
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
        if self._host is not None:
            self._host.leave_files()
        for checkpoint in list(self._handed):
            self._handed.pop(checkpoint).close()

    def _run(self) -> None:
        while (snapshot := self._queue.get()) is not None:
            if snapshot.checkpoint not in self._given_up:
                self._store(snapshot)

    def _store(self, snapshot: TakenSnapshot) -> None:
        began = time.monotonic()
        stamp = Stamp.by(self._owner, snapshot.checkpoint)
        try:
            state = ((name, make()) for name, make in snapshot.chunks)
            rows = (piece for channel in snapshot.channels for piece in pieces_of(channel))
            if snapshot.log is not None:
                snapshot.figures["logged_bytes"] = float(snapshot.log.written.result().size)
            chunks = self._hand_over(snapshot, itertools.chain(state, rows))
            if chunks is None:
                return
            if self._storage is None:
                self._storage = PartStorage(self._location)
            handle = self._storage.write(stamp, self._part, chunks)
            _tell_places(snapshot.chunks, handle)
            handle = _with_log(handle, snapshot.log)
        except Exception as error:  # noqa: BLE001 - a checkpoint is declined, the task goes on
            self._mailbox.decline(snapshot.checkpoint, f"{self._part}: {type(error).__name__}: {error}")
            return
        figures = {**snapshot.figures, "bytes": float(handle.bytes), "store_seconds": time.monotonic() - began}
        self._mailbox.acknowledge(snapshot.checkpoint, pack_part(handle), figures)

    def _hand_over(self, snapshot: TakenSnapshot, chunks: Iterator[_Made]) -> Iterator[_Made] | None:
        """Have the host's store write these chunks; they are given back where the task is to write them itself."""
        host = self._host
        if host is None or not (self._shares and snapshot.shares_file):
            return chunks
        made, size = [], 0
        for name, content in chunks:
            made.append((name, content))
            if not isinstance(content, Referred):
                size += sum(memoryview(each).nbytes for each in parts_of(content))
            if size > SHARED_BYTES:
                return itertools.chain(made, chunks)
        memory = self._handed[snapshot.checkpoint] = PartMemory()
        written = tuple([append(memory, name, content) for name, content in made])
        handle = _with_log(PartHandle("", memory.size, written), snapshot.log)
        part = HandedPart(
            self._location, self._owner, snapshot.checkpoint, memory.address, pack_part(handle), snapshot.figures
        )
        host.hand_over(part, functools.partial(self._answered, snapshot.checkpoint))
        return None

    def _answered(self, checkpoint: int, cause: str) -> None:
        """The host's store has stored a snapshot, or says why it could not. The task's thread."""
        if checkpoint in self._handed:
            self._handed.pop(checkpoint).close()
        if cause:
            self._shares = False
            self._mailbox.decline(checkpoint, f"{self._part}: {cause}")


def _tell_places(chunks: Sequence[Chunk], handle: PartHandle) -> None:
    """Tell pieces that later snapshots may refer to (`written`) the places where they are stored."""
    for (_, make), chunk in zip(chunks, handle.chunks, strict=False):
        written = getattr(make, "written", None)
        if written is not None:
            written(handle.with_file(chunk))


def _with_log(handle: PartHandle, log: LogCut | None) -> PartHandle:
    return handle if log is None else log.added_to(handle)
