# SPDX-License-Identifier: Apache-2.0
"""The chain of steps of a streaming task: batches are pushed in, and what comes out goes to the task's outputs.

A step may keep state and may hold rows back; at the end of an epoch (a barrier) it gives out what it holds back, so
that the rows in front of a barrier have all gone through when the states are taken. The end of an epoch is not the
end of the input. Steps know no clock, no thread and no wait.

Event time goes through the chain as rows do: each step hears of a watermark behind the rows in front of it, and what
it gives for it goes through the later steps first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.metadata import Chunk as StoredChunk
from penstock.machine.work_sign import WORK
from penstock.shuffle.metrics import OPERATOR_GROUP
from penstock.stream.restored_state import PartOfState
from penstock.stream.sources import SourceReader, partitions_of
from penstock.stream.watermark import Watermark, never_back
from penstock.stream.watermarks import EventTimeProgress

Buffer = bytes | bytearray | memoryview
Chunk = tuple[str, Callable[[], Buffer | Sequence[Buffer] | StoredChunk]]
"""A name, and what makes the bytes, or pieces of them, or tells where they are stored already: called by the thread
that stores them, so it may use immutable values only. One with `written(place)` hears where its bytes were stored."""
SOURCE = "source"
"""The name that a source's chunks go by: it is no step."""
EVENT_TIME = "event_time"
"""The name that a task's own watermark goes by: it is no step's."""
ROW_COUNTS = "row_counts"
"""The name that the counts of a task's channels go by: they are no step's."""
OWN = (SOURCE, EVENT_TIME, ROW_COUNTS)
State = Mapping[str, bytes]
"""The chunks of one subtask's step, by name, as they were stored."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """The place of a step in the query.

    `place` is how messages name it; key groups are numbers below `max_parallelism`.

    `owner` is the driver that has the query's checkpoint location, `<epoch>-<token>`: of two the later one is
    greater, also as text. It is empty for a query without checkpoints. `attempt` counts the attempts of this driver.
    `is_finished`: the task had finished in the restored checkpoint, so no row comes and nothing is to be published.
    `idle_after`: seconds without rows after which an input holds no watermark back; 0: it always does.
    `clock` gives the seconds since 1970 by which timers of the clock fire. `is_bounded`: the run reads what is
    available and ends, so its rows are one batch, and event time moves once, at its end.
    """

    subtask: int
    parallelism: int
    max_parallelism: int
    place: str
    owner: str = ""
    attempt: int = 0
    is_finished: bool = False
    idle_after: float = 0.0
    clock: Callable[[], float] = time.time
    is_bounded: bool = False


class Step(Protocol):
    """One operator of one subtask. Life: `open`, any of the others, `close`."""

    @property
    def name(self) -> str:
        """The name for messages."""

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Begin with these states: none, this subtask's own, or those of all subtasks where their number changed."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows that a batch of rows gives."""

    def progress(self, incoming: EventTimeProgress, waited: float) -> EventTimeProgress:
        """Event time after this step, where it is `incoming` in front of it; a step that makes its own says that.

        `waited` are the seconds in which the task has waited for rows since its begin.
        """

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """The rows that are due: rows that come from here on are not older than this.

        It grows with each call, but may begin before one that a restored state has heard of. A step with
        `allows_later_watermarks` may hear of it behind rows that came after it, if they wait: of these it takes late
        ones that it would have refused.
        """

    def end_epoch(self) -> Iterable[pa.RecordBatch]:
        """The rows that were held back: a barrier comes."""

    def end_input(self, *, stopped: bool) -> Iterable[pa.RecordBatch]:
        """The last rows: no more input comes. If the query was `stopped`, the data itself has not ended."""

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The state as immutable values; nothing that comes later may change them."""

    def completed(self, checkpoint: int) -> None:
        """A checkpoint that this step gave a snapshot for, or a later one, is complete."""

    def publish(self, number: int) -> None:
        """Without checkpoints: publish what has come so far. `number` grows."""

    def close(self) -> None:
        """Give back what the step holds; idempotent."""


class PlainStep:
    """A step that holds nothing; `process` and `name` are its subclass's."""

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Nothing to begin with."""

    def progress(self, incoming: EventTimeProgress, waited: float) -> EventTimeProgress:
        """As in front of it."""
        return incoming

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """Nothing was waiting for it."""
        return ()

    def end_epoch(self) -> Iterable[pa.RecordBatch]:
        """Nothing was held back."""
        return ()

    def end_input(self, *, stopped: bool) -> Iterable[pa.RecordBatch]:
        """Nothing was held back."""
        return ()

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """No state."""
        return []

    def completed(self, checkpoint: int) -> None:
        """Nothing to publish."""

    def publish(self, number: int) -> None:
        """Nothing to publish."""

    def close(self) -> None:
        """Nothing to give back."""


class Chain:
    """Steps with their ids, in order; an id is what a step's chunks are found by again."""

    def __init__(self, steps: Sequence[tuple[str, Step]]) -> None:
        self._steps = tuple(steps)
        self._place = ""
        self._watches = {id(step): _StepWatch(title, step) for step, title in _titled(self._steps)}
        self._told = [Watermark()] * len(self._steps)
        """The watermark that each step has heard of."""
        self._reached = Watermark()
        """The watermark behind all steps."""
        self._timed = [place for place, (_, step) in enumerate(steps) if hasattr(step, "time_passed")]
        """The places of steps that work by the clock."""
        self._told_of_reads: list[Step] = []
        """The steps that hear of each batch of a source: filters in front of them may leave none of its rows."""
        self.allows_later_watermarks = all(_allows_later(step) for _, step in self._steps)
        """True if rows may be taken ahead of watermarks that came in front of them, so that they cost less."""

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Open all steps; the chunks of each are those whose names begin with its id and a slash.

        Raises CheckpointError for state that is no step's: it would be lost with the next checkpoint.
        """
        self._stands_at(context.place)
        self._refuse_unknown({name for state in restored for name in state})
        for identity, step in self._steps:
            own = [found for state in restored if (found := chunks_of(state, identity))]
            with self._noted(step):
                step.open(context, own)

    def refuse_others(self, place: str, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise as `open` would, before a query starts: `names` are the chunks of all subtasks, `read` reads some.

        A step may have `check(names, read)`, which gets its own names.
        """
        self._stands_at(place)
        self._refuse_unknown(names)
        for identity, step in self._steps:
            check = getattr(step, "check", None)
            start = f"{identity}/"
            own = {name.removeprefix(start) for name in names if name.startswith(start)}
            if check is not None and own:
                check(own, lambda name, start=start: read(start + name))

    def left_behind(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> set[str]:
        """The chunks of a savepoint that a query which begins with it does without, as its sink writes elsewhere.

        A step may have `left_behind(names, read)`, which gets its own names.
        """
        found: set[str] = set()
        for identity, step in self._steps:
            left_behind = getattr(step, "left_behind", None)
            start = f"{identity}/"
            own = {name.removeprefix(start) for name in names if name.startswith(start)}
            if left_behind is not None and own:
                left: set[str] = left_behind(own, lambda name, start=start: read(start + name))
                found |= {start + name for name in left}
        return found

    def _stands_at(self, place: str) -> None:
        self._place = place
        for watch in self._watches.values():
            watch.place = place

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        known = {*OWN, *(identity for identity, _ in self._steps)}
        for owner in sorted({name.partition("/")[0] for name in names} - known):
            raise CheckpointError(
                f"{self._place}: the checkpoint to go on from holds state of {owner!r}, and no operator of that name"
                f" is here ({', '.join(sorted(known - {*OWN})) or 'there is none'}): bring it back, or"
                " start at a new checkpointLocation"
            )

    def push(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The rows that come out of the chain's end for this batch."""
        batches = [batch]
        for maker in self._told_of_reads:
            maker.batch_read()  # type: ignore[attr-defined]
        for _, step in self._steps:
            if not batches:
                break
            batches = self._through(step, batches)
        return batches

    @property
    def makes_time(self) -> bool:
        """True if a step makes watermarks of the rows that it sees, so that event time moves without an event."""
        return any(getattr(step, "makes_time", False) for _, step in self._steps)

    def reads(self, reader: SourceReader) -> None:
        """Tell the steps that make watermarks whose rows they are of."""
        makers = [step for _, step in self._steps if getattr(step, "makes_time", False)]
        if makers and (partitions := partitions_of(reader)) is not None:
            partitions.read_by_partition()
        for step in makers:
            step.reads(reader)  # type: ignore[attr-defined]
        self._told_of_reads = makers

    def end_run(self) -> None:
        """Tell the steps that make watermarks that all rows of the run have come."""
        for _, step in self._steps:
            if getattr(step, "makes_time", False):
                step.end_run()  # type: ignore[attr-defined]

    def advance(self, progress: EventTimeProgress, waited: float) -> tuple[list[pa.RecordBatch], EventTimeProgress]:
        """Event time in front of the chain is `progress`: the rows that this gives, and event time after it."""
        batches: list[pa.RecordBatch] = []
        for place, (_, step) in enumerate(self._steps):
            batches = self._through(step, batches) if batches else []
            progress = step.progress(progress, waited)
            if progress.watermark > self._told[place]:
                self._told[place] = progress.watermark
                with self._noted(step):
                    batches += _with_rows(step.on_watermark(progress.watermark))
            progress = progress.held_back(getattr(step, "holds_back", 0))
        never_back(self._reached, progress.watermark, self._place)
        self._reached = progress.watermark
        return batches, progress

    @property
    def wake_in(self) -> float | None:
        """Seconds until a step has something to do by the clock, `time_passed`; None: no step has.

        Steps that work by the clock have these two as well.
        """
        if not self._timed:
            return None
        waits = [wait for place in self._timed if (wait := self._steps[place][1].wake_in) is not None]  # type: ignore[attr-defined]
        return min(waits, default=None)

    def time_passed(self) -> list[pa.RecordBatch]:
        """The rows that the clock's time gives, gone through the later steps."""
        batches: list[pa.RecordBatch] = []
        for place, (_, step) in enumerate(self._steps):
            batches = self._through(step, batches)
            if place in self._timed:
                with self._noted(step):
                    batches += _with_rows(step.time_passed())  # type: ignore[attr-defined]
        return batches

    def end_epoch(self) -> list[pa.RecordBatch]:
        """The rows that the steps held back, gone through the later steps."""
        batches: list[pa.RecordBatch] = []
        for _, step in self._steps:
            batches = self._through(step, batches)
            with self._noted(step):
                batches += _with_rows(step.end_epoch())
        return batches

    def end_input(self, *, stopped: bool) -> list[pa.RecordBatch]:
        """The last rows of all steps, gone through the later ones."""
        batches: list[pa.RecordBatch] = []
        for _, step in self._steps:
            batches = self._through(step, batches)
            with self._noted(step):
                batches += _with_rows(step.end_input(stopped=stopped))
        return batches

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The chunks of all steps, each named `<id>/<name>`."""
        chunks: list[Chunk] = []
        for identity, step in self._steps:
            with self._noted(step):
                chunks += [(f"{identity}/{name}", make) for name, make in step.snapshot(checkpoint)]
        return chunks

    def metrics(self) -> dict[str, float]:
        """The seconds of each step, and the figures of all that have `metrics()`, added up by their names."""
        found = {OPERATOR_GROUP + watch.title: watch.seconds for watch in self._watches.values()}
        for _, step in self._steps:
            metrics: Callable[[], Mapping[str, float]] | None = getattr(step, "metrics", None)
            for name, value in ({} if metrics is None else metrics()).items():
                found[name] = found.get(name, 0.0) + value
        return found

    def completed(self, checkpoint: int) -> None:
        """Tell all steps."""
        for _, step in self._steps:
            with self._noted(step):
                step.completed(checkpoint)

    def publish(self, number: int) -> None:
        """Tell all steps."""
        for _, step in self._steps:
            with self._noted(step):
                step.publish(number)

    def close(self) -> None:
        """Close all steps, each in any case; raises the first error."""
        first: BaseException | None = None
        for _, step in self._steps:
            try:
                step.close()
            except BaseException as error:  # noqa: BLE001 - the rest must be closed, then it is raised
                first = first or error
        if first is not None:
            raise first

    def _through(self, step: Step, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        with self._noted(step):
            return [given for batch in batches for given in _with_rows(step.process(batch))]

    def _noted(self, step: Step) -> _StepWatch:
        return self._watches[id(step)]


class _StepWatch:
    """Counts a step's time as its own, and notes its name at an error that it raises: a block at a time."""

    def __init__(self, title: str, step: Step) -> None:
        self.title = title
        self.place = ""
        self.seconds = 0.0
        self._step = step
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()
        WORK.tell(self.title)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.seconds += time.monotonic() - self._began
        WORK.tell("")
        if error is not None:
            error.add_note(f"raised in {self._step.name} of {self.place}")


def _allows_later(step: Step) -> bool:
    """True for a step that hears of no watermark, or says that it may hear of one behind rows that followed it."""
    hears = getattr(type(step), "on_watermark", None) is not PlainStep.on_watermark
    return not hears or getattr(step, "allows_later_watermarks", False)


def _titled(steps: Sequence[tuple[str, Step]]) -> list[tuple[Step, str]]:
    """Steps with their names for people; of two with one name the second has its number too."""
    titled: list[tuple[Step, str]] = []
    for place, (_, step) in enumerate(steps):
        same = sum(other.name == step.name for _, other in steps[:place])
        titled.append((step, f"{step.name} #{same + 1}" if same else step.name))
    return titled


def chunks_of(state: State, identity: str) -> State:
    """The chunks of one step, by their names without the id."""
    return PartOfState(state, f"{identity}/")


def _with_rows(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [batch for batch in batches if batch.num_rows]
