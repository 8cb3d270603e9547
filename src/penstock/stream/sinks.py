# SPDX-License-Identifier: Apache-2.0
"""A sink of a streaming query: a factory that travels, and one writer with two phases for each subtask.

Rows that were written between two barriers are prepared at the second: safely stored under a name that readers skip,
and the name goes into the checkpoint. It is published when that checkpoint is complete. So a reader sees the rows of
complete checkpoints and no others, each once, whatever is killed in between:

- An attempt that dies before its checkpoint is complete has published nothing of it.
- One that dies after that has written down what is to be published, and the next attempt publishes it: once more,
  if need be, which must change nothing.

Errors of a writer that are the world's (see `outside`) restart the query; all others are bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.errors import PlanError
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.outside import outside

_STATE = "sink"


class SinkWriter(Protocol):
    """One subtask's share of a sink. All calls are those of the task's thread, but for `sync`.

    A writer may have `sync(prepared: bytes)` too: the thread that stores the checkpoint calls it, with what `prepare`
    gave, and it returns when all of that is safe. So a disk that is slow holds up no row.
    """

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""

    def prepare(self, checkpoint: int) -> bytes:
        """Close what was written; all that is prepared and not yet published, to be published later.

        It must be stored safely when this returns, or when `sync` does.
        """

    def commit(self, checkpoint: int) -> None:
        """Publish what was prepared for this checkpoint and for all before it; again is nothing new."""

    def close(self) -> None:
        """Give back what the writer holds; idempotent. Rows that were not prepared may be dropped."""


class StreamSink(Protocol):
    """A sink before it is opened; picklable.

    It may have `writing`, an operator for a stage of any number of tasks before it: the sink then has one task,
    which takes what that gives (`commit_sink`). And it may have four methods more:

    - `owned(owner)`: the same sink for one attempt of its tasks. Texts of later attempts, those of other drivers too,
      are greater: so a task that begins late can leave alone what its successors write.
    - `check(restored)`: raises PlanError or CheckpointError where a query can't go on with it from these. The driver
      asks it before the query starts, with what all subtasks prepared.
    - `check_anew()`: raises CheckpointError where the query has published before, and has no checkpoint now.
    - `is_elsewhere(restored)`: tell if these were prepared for another place than the sink's. A query that begins
      with a savepoint leaves them to the query that wrote it, and begins its own place.
    """

    @property
    def name(self) -> str:
        """The name that `explain` shows."""

    def open(self, subtask: int, parallelism: int, restored: Sequence[bytes]) -> SinkWriter:
        """A subtask's writer, after it has published everything that `restored` names.

        `restored` is empty, or holds what this subtask prepared, or what all did where their number changed.
        """


@dataclass(frozen=True, slots=True)
class SinkOperator:
    """The last operator of a streaming query's last vertex."""

    sink: StreamSink
    uid: str = _STATE

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        return self.sink.name

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises PlanError: a batch job writes otherwise."""
        raise PlanError(f"{self.name} is the sink of a streaming query: a batch job has writeParquet() and toDF()")

    def step(self) -> SinkStep:
        """The step of one subtask."""
        return SinkStep(self.sink)


class SinkStep(PlainStep):
    """Writes all rows and gives none."""

    def __init__(self, sink: StreamSink) -> None:
        self._sink = sink
        self._writer: SinkWriter | None = None

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._sink.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Open the writer, which publishes what was prepared."""
        if context.is_finished:
            return  # it comes and goes
        states = [state[_STATE] for state in restored]
        owned: Callable[[str], StreamSink] | None = getattr(self._sink, "owned", None)
        sink = self._sink if owned is None else owned(f"{context.owner}-{context.attempt:06d}")
        with outside(f"{self.name} can't be opened"):
            self._writer = sink.open(context.subtask, context.parallelism, states)

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise PlanError or CheckpointError where the sink can't publish what a checkpoint names."""
        check: Callable[[Sequence[bytes]], None] | None = getattr(self._sink, "check", None)
        if check is not None and _STATE in names:
            check(read(_STATE))

    def left_behind(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> set[str]:
        """The chunk of prepared rows that are for another place; raises CheckpointError where ours is no new one."""
        is_elsewhere: Callable[[Sequence[bytes]], bool] | None = getattr(self._sink, "is_elsewhere", None)
        if is_elsewhere is None or _STATE not in names or not is_elsewhere(read(_STATE)):
            return set()
        check_anew: Callable[[], None] | None = getattr(self._sink, "check_anew", None)
        if check_anew is not None:
            check_anew()
        return {_STATE}

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Write the rows."""
        with outside(f"{self.name} can't be written"):
            self._opened.write(batch)
        return ()

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """Prepare what was written."""
        with outside(f"{self.name} can't be prepared for checkpoint {checkpoint}"):
            prepared = self._opened.prepare(checkpoint)
        sync: Callable[[bytes], None] | None = getattr(self._opened, "sync", None)

        def stored() -> bytes:
            if sync is not None:
                sync(prepared)
            return prepared

        return [(_STATE, stored)]

    def completed(self, checkpoint: int) -> None:
        """Publish."""
        with outside(f"{self.name} can't publish checkpoint {checkpoint}"):
            self._opened.commit(checkpoint)

    def publish(self, number: int) -> None:
        """Both phases at once."""
        with outside(f"{self.name} can't publish"):
            self._opened.prepare(number)
            self._opened.commit(number)

    def close(self) -> None:
        """Close the writer."""
        if self._writer is not None:
            with outside(f"{self.name} can't be closed"):
                self._writer.close()

    @property
    def _opened(self) -> SinkWriter:
        assert self._writer is not None, f"{self.name} was not opened"  # noqa: S101 - a step is opened first
        return self._writer
