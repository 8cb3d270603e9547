# SPDX-License-Identifier: Apache-2.0
"""RecordWriter: from a task's batches to the subpartitions of one result partition.

Rules:
- Small batches are gathered before they are partitioned, so that many subpartitions do not get tiny messages;
  large ones are cut, so that what partitioning copies stays bounded. One huge row cannot be cut.
- As many bytes or rows are gathered as the target takes best (`Intake`).
- Rows keep their order within a subpartition. Rows become visible at the latest `flush_timeout` seconds after they
  were written (0: at once, negative: when a buffer is full or at the end).
- One lock covers everything that emits, so the target never sees two calls at once; they may come from the flusher's
  thread. A target that waits for room has made all that it has taken visible: what is in half-filled buffers may be
  what the reader waits for.
- A failure in the flusher is kept and raised by the task's next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from penstock.record.joining import joined
from penstock.record.partitioners import Partitioner
from penstock.shuffle.endpoints import Intake, PartitionEnd
from penstock.shuffle.splits import Split

_SMALL_ROWS = 4096
_ROWS_PER_SUBPARTITION = 128
_SLICE_ROWS = 1 << 20
_SLICE_BYTES = 32 << 20


class StopSignal(Protocol):
    """The event the flusher waits on: `threading.Event`, or a test's stand-in."""

    def wait(self, timeout: float) -> bool:
        """Wait; True means stop."""

    def set(self) -> None:
        """Stop."""


class Target(Protocol):
    """A result partition to write, by calls that wait for room."""

    def write(self, split: Split) -> None:
        """Append these rows; waits while there is no room."""

    def flush(self) -> None:
        """Make everything written so far visible to readers."""

    def finish(self) -> PartitionEnd:
        """Flush and end the partition."""


class OutputFlusher:
    """A daemon thread that calls `flush` every `interval` seconds until it is closed or `flush` fails."""

    def __init__(self, flush: Callable[[], None], interval: float, clock: StopSignal | None = None) -> None:
        self._flush = flush
        self._interval = interval
        self._stop: StopSignal = threading.Event() if clock is None else clock
        self._thread = threading.Thread(target=self._run, name="penstock-output-flusher", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def check(self) -> None:
        """Raise what made `flush` fail, every time it is asked."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop and wait for the thread; idempotent. A flush that waits for room must be cancelled first."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._flush()
            except BaseException as failure:  # noqa: BLE001 - raised in the task's thread by check()
                self._failure = failure
                return


class RecordWriter:
    """Writes batches to a result partition. Life: any number of `write` and `flush`, `finish`, then `close`."""

    def __init__(
        self,
        partitioner: Partitioner,
        target: Target,
        intake: Intake,
        flush_timeout: float,
        clock: StopSignal | None = None,
    ) -> None:
        self._partitioner = partitioner
        self._target = target
        self._intake = intake
        self._flush_always = flush_timeout == 0
        self._enough_rows = intake.rows or max(_SMALL_ROWS, _ROWS_PER_SUBPARTITION * partitioner.subpartitions)
        self._lock = threading.Lock()
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._written = False
        self._flusher: OutputFlusher | None = None
        if flush_timeout > 0:
            self._flusher = OutputFlusher(self._flush_in_time, flush_timeout, clock)
            self._flusher.start()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch; waits while the target has no room. Raises what made the flusher fail."""
        self._check()
        if batch.num_rows == 0:
            return
        with self._lock:
            self._written = True
            self._gather(batch)
            if self._flush_always:
                self._emit_gathered()
                self._flush_target()

    def keeps(self, batch: pa.RecordBatch) -> bool:
        """Tell whether the memory of this batch is looked at again when `write` has returned."""
        if not self._is_enough(batch.num_rows, batch.nbytes):
            return True
        return self._intake.holds_batches

    def flush(self) -> None:
        """Make everything written so far visible to readers."""
        self._check()
        with self._lock:
            self._emit_gathered()
            self._flush_target()

    def finish(self) -> PartitionEnd:
        """Emit what is left and finish the target; no write may follow."""
        self.close()
        self._check()
        with self._lock:
            self._emit_gathered()
            return self._target.finish()

    def close(self) -> None:
        """Stop the flusher; idempotent.

        Batches that were gathered and not emitted are dropped unless `finish` follows.
        """
        if self._flusher is not None:
            self._flusher.close()

    def _check(self) -> None:
        if self._flusher is not None:
            self._flusher.check()

    def _gather(self, batch: pa.RecordBatch) -> None:
        nbytes = batch.nbytes
        if self._is_enough(batch.num_rows, nbytes):
            self._emit_gathered()
            self._emit(batch, nbytes)
            return
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        self._gathered_bytes += nbytes
        if self._is_enough(self._gathered_rows, self._gathered_bytes):
            self._emit_gathered()

    def _is_enough(self, rows: int, nbytes: int) -> bool:
        return rows >= self._enough_rows or nbytes >= self._intake.nbytes

    def _emit_gathered(self) -> None:
        if not self._gathered:
            return
        gathered, nbytes = self._gathered, self._gathered_bytes
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        whole = joined(gathered)
        del gathered  # nothing is kept beside its copy: many subpartitions gather many MiB
        while whole:
            self._emit(whole.pop(0), nbytes)

    def _emit(self, batch: pa.RecordBatch, nbytes: int) -> None:
        rest = _bounded(batch, nbytes)
        del batch
        while rest:
            self._target.write(self._partitioner.split(rest.pop(0)))

    def _flush_target(self) -> None:
        self._written = False
        self._target.flush()

    def _flush_in_time(self) -> None:
        """One tick of the flusher."""
        if not self._written:
            return
        with self._lock:
            self._emit_gathered()
            self._flush_target()


def _bounded(batch: pa.RecordBatch, nbytes: int) -> list[pa.RecordBatch]:
    """The batch in slices that keep to the limits of rows and, on average, of bytes."""
    rows = batch.num_rows
    step = min(_SLICE_ROWS, max(1, rows * _SLICE_BYTES // max(nbytes, 1)))
    if step >= rows:
        return [batch]
    return [batch.slice(start, step) for start in range(0, rows, step)]
