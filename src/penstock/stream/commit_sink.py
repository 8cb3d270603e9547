# SPDX-License-Identifier: Apache-2.0
"""A sink that commits in one place: many tasks write, and one task makes a single commit of what all of them wrote.

    rows -> the writing stage, any number of tasks -> messages -> the committing stage, one task

A message says what a task wrote between two barriers (the names of files, say), and goes ahead of the second. So the
committing task's part of a checkpoint has the messages of all of them. When the checkpoint is complete it commits
them, under a number that grows. An attempt begins by committing what the restored checkpoint names, under the same
number: once more, if need be, which must change nothing.

A checkpoint that was given up leaves its messages to the next one, as a commit of its own. No commit is made where
nothing was written. Messages that no checkpoint names die with their attempt: `abort` hears of those that had come.
So no barrier overtakes messages, also where it may overtake rows: none is in flight in a checkpoint.

Limits: the committing stage takes a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgpack
import pyarrow as pa

from penstock.errors import PlanError
from penstock.graph import Operator

MESSAGES = pa.schema([("message", pa.binary())])
_EPOCH_BITS = 32


@dataclass(frozen=True, slots=True)
class CommitId:
    """The name of a commit: the query that made it, and the barrier behind its rows.

    `query` stays the same in all runs at one checkpoint location. `epoch` counts the drivers of that location.
    """

    query: str
    epoch: int
    checkpoint: int

    @property
    def version(self) -> int:
        """A number that is greater for each later commit of a query, whichever attempt made it."""
        return (self.epoch << _EPOCH_BITS) | self.checkpoint


class Committer(Protocol):
    """The one place where a sink's rows are made visible; picklable.

    It may have four methods more: `accepted(message)` gives the bytes to be kept of a message that has come, or
    raises; `abort(checkpoint, messages)` hears of messages that will not be committed; `check(commit, messages)`
    raises CheckpointError where a query that starts could not make this commit; `check_anew(query)` does so where
    this query has committed before, and has no checkpoint now.
    """

    @property
    def name(self) -> str:
        """The place that is written to, for people; a checkpoint's messages are for it and no other."""

    def commit(self, commit: CommitId, messages: Sequence[bytes]) -> None:
        """Make visible what the messages name; again, with the same id, is nothing new."""


def message_batch(message: bytes) -> pa.RecordBatch:
    """One message as a row."""
    ends = memoryview(bytearray(8)).cast("i")
    ends[1] = len(message)
    column = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(message)])
    return pa.RecordBatch.from_arrays([column], schema=MESSAGES)


def refuse_other_target(prepared: Iterable[str], target: str) -> None:
    """Raise PlanError where rows were prepared for another place than this one."""
    for each in prepared:
        if each != target:
            raise PlanError(
                f"the checkpoint to go on from has rows to commit to {each}, and this query writes to"
                f" {target}: start it with what it had, or with another checkpointLocation"
            )


@dataclass(frozen=True, slots=True)
class CommitSink:
    """The committing stage. `writing` is the operator that makes messages of rows; `uid` is the query's."""

    committer: Committer
    writing: Operator
    uid: str
    owner: str = "0"
    """The attempt that opens it (see `StreamSink`)."""
    keys: tuple[str, ...] = ()
    """The rows of one value of these columns come to one writing task, in their order."""
    is_whole: bool = False
    """The table has the whole result: another place would lack what does not change."""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return f"commit to {self.committer.name}"

    def owned(self, owner: str) -> CommitSink:
        """The same sink, for one attempt."""
        return replace(self, owner=owner)

    def check(self, restored: Sequence[bytes]) -> None:
        """Raise PlanError where these messages are for another place; CheckpointError where it can't commit them."""
        refuse_other_target((msgpack.unpackb(state)["target"] for state in restored), self.committer.name)
        check: Callable[[CommitId, Sequence[bytes]], None] | None = getattr(self.committer, "check", None)
        if check is None:
            return
        for state in restored:
            for commit, messages in _unpacked(state):
                check(commit, messages)

    def is_elsewhere(self, restored: Sequence[bytes]) -> bool:
        """Tell if these messages are for another place, which may be left."""
        return not self.is_whole and any(
            msgpack.unpackb(state)["target"] != self.committer.name for state in restored
        )

    def check_anew(self) -> None:
        """Raise CheckpointError if this query has committed, which it does only after a checkpoint."""
        check: Callable[[str], None] | None = getattr(self.committer, "check_anew", None)
        if check is not None:
            check(self.uid)

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> CommitWriter:
        """Commit what was prepared, and begin."""
        for state in restored:
            for commit, messages in _unpacked(state):
                self.committer.commit(commit, messages)
        return CommitWriter(self)


class CommitWriter:
    """Messages on their way to their commit."""

    def __init__(self, sink: CommitSink) -> None:
        self._sink = sink
        self._epoch = int(sink.owner.partition("-")[0] or 0)
        self._accepted: Callable[[bytes], bytes] = getattr(sink.committer, "accepted", bytes)
        self._come: list[bytes] = []
        self._prepared: list[tuple[CommitId, list[bytes]]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Take messages."""
        self._come += [self._accepted(message) for message in batch.column(0).to_pylist()]

    def prepare(self, checkpoint: int) -> bytes:
        """Make one commit of what has come; all that is to be committed."""
        if self._come:
            self._prepared.append((CommitId(self._sink.uid, self._epoch, checkpoint), self._come))
            self._come = []
        prepared = [(each.query, each.epoch, each.checkpoint, messages) for each, messages in self._prepared]
        packed: bytes = msgpack.packb({"target": self._sink.committer.name, "prepared": prepared})
        return packed

    def commit(self, checkpoint: int) -> None:
        """Make visible what was prepared up to this checkpoint."""
        while self._prepared and self._prepared[0][0].checkpoint <= checkpoint:
            self._sink.committer.commit(*self._prepared[0])
            del self._prepared[0]

    def close(self) -> None:
        """Messages that no checkpoint names are gone."""
        come, self._come = self._come, []
        abort: Callable[[int, Sequence[bytes]], Any] | None = getattr(self._sink.committer, "abort", None)
        if come and abort is not None:
            abort(self._prepared[-1][0].checkpoint + 1 if self._prepared else 0, come)


def _unpacked(state: bytes) -> Iterator[tuple[CommitId, list[bytes]]]:
    for query, epoch, checkpoint, messages in msgpack.unpackb(state)["prepared"]:
        yield CommitId(query, epoch, checkpoint), messages
