# SPDX-License-Identifier: Apache-2.0
"""One subtask of a processor with state: batches and times go in, its calls are made, its state is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import PlanError
from penstock.operators.keys import plain
from penstock.record.key_groups import GroupOwners
from penstock.record.layout import int64_array
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.lateness import Lateness
from penstock.stream.restored_state import PartOfState
from penstock.stream.state.batch_states import Moment
from penstock.stream.state.calls import ProcessorCalls
from penstock.stream.state.declarations import Declarations
from penstock.stream.state.keys import KeyNumbers, Keys
from penstock.stream.state.shared_rows import parts
from penstock.stream.state.store import KeyedStore
from penstock.stream.state.stored import ABOUT, About
from penstock.stream.state.times import EVENT, NONE, PROCESSING, TimerValues
from penstock.stream.state_place import state_figures
from penstock.stream.watermark import Watermark

SHARED = "all/"
"""The chunks of what is the same in all tasks."""
_FOR_EVER = (1 << 63) - 1
_MILLISECONDS = 1000


class Processing(Protocol):
    """The description of the processor of all subtasks."""

    @property
    def name(self) -> str:
        """The name for messages."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns with their types."""

    @property
    def time_mode(self) -> str:
        """The time of its timers."""

    @property
    def initial(self) -> pa.Table | None:
        """The rows with which states begin."""

    @property
    def input_schema(self) -> pa.Schema:
        """The columns of its rows."""

    @property
    def has_shared(self) -> bool:
        """True if rows of a second stream come to all tasks."""

    def declarations(self) -> Declarations:
        """An empty declaration of its states."""

    def calls(self) -> ProcessorCalls:
        """The calls of a processor of its own."""


class ProcessorStep(PlainStep):
    """One subtask's processor and its state."""

    def __init__(self, operator: Processing) -> None:
        self._operator = operator
        self._moment = Moment()
        self._numbers = KeyNumbers()
        self._calls: ProcessorCalls | None = None
        self._time = Lateness()
        self._context = StepContext(0, 1, 1, "")

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Have the processor declare its states, and take this subtask's keys out of those that are restored."""
        self._context = context
        self._calls = self._operator.calls()
        self._moment.bind(*self._declared(self._calls))
        self._time.open(context, restored)
        self._look_at_clock()
        own = [PartOfState(state, "", without=SHARED) for state in restored]
        # The clock tells what has expired, also of states that die no more, in a processor that knows no time.
        self._moment.store.restore(own, context, max(self._moment.now, int(context.clock() * _MILLISECONDS)))
        self._restore_shared(restored)
        if not restored and self._operator.initial is not None and not context.is_finished:
            for batch in self._operator.initial.to_batches():
                self._give_initial(batch)

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the states of a checkpoint can't be those of this processor."""
        if ABOUT not in names:
            return
        calls = self._operator.calls()
        try:
            store, shared = self._declared(calls)
            store.check(read(ABOUT), self.name)
            if f"{SHARED}{ABOUT}" in names:
                shared.check(read(f"{SHARED}{ABOUT}"), self.name)
        finally:
            calls.close()

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows that a batch gives, and timers of event time that it has registered for a time that is over."""
        self._look_at_clock()
        if self._operator.has_shared:
            for is_shared, part in parts(batch, self._operator.input_schema):
                yield from self._handled(part, is_shared=is_shared)
        else:
            yield from self._handled(batch, is_shared=False)
        if self._operator.time_mode == EVENT:
            yield from self._fire_due()

    @property
    def wake_in(self) -> float | None:
        """Seconds until a timer fires; None: there is none."""
        if self._operator.time_mode != PROCESSING or self._calls is None:
            return None
        due = self._moment.store.timers.next
        return None if due is None else due / _MILLISECONDS - self._context.clock()

    def time_passed(self) -> Iterable[pa.RecordBatch]:
        """The rows that timers of the clock give which have expired, not all at once where there are many."""
        if self._operator.time_mode != PROCESSING:
            return ()
        self._look_at_clock()
        return self._fire(self._moment.now)

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """The rows that timers of event time give which have expired, and those that these register."""
        if self._operator.time_mode != EVENT:
            return
        self._time.advance(watermark)
        if watermark.is_end:
            yield from self._fire_all()
            return
        yield from self._fire_due()

    def end_input(self, *, stopped: bool) -> Iterable[pa.RecordBatch]:
        """If the data has ended, all timers of the clock fire that wait now; else those that have expired by now."""
        if self._operator.time_mode != PROCESSING:
            return ()
        return self._fire_expired() if stopped else self._fire_all()

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """Keys, states and timers as they are now."""
        chunks = self._moment.store.snapshot(self._context, checkpoint)
        if self._operator.time_mode == EVENT:
            chunks.append(self._time.chunk())
        if self._operator.has_shared:
            chunks += [(f"{SHARED}{name}", make) for name, make in self._moment.shared.snapshot(self._context)]
        return chunks

    def completed(self, checkpoint: int) -> None:
        """A checkpoint is complete: later ones may refer to what it holds."""
        self._moment.store.completed(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Keys that have state."""
        return state_figures(self._moment.store.keys, self._moment.store, self._moment.shared)

    def close(self) -> None:
        """Have the processor clean up."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.close()

    def _declared(self, calls: ProcessorCalls) -> tuple[KeyedStore, KeyedStore]:
        """The stores for what the processor declares: by key, and the same in all tasks."""
        declarations = self._operator.declarations()
        calls.init(declarations, self._moment)
        declarations.close()
        if declarations.shared and not self._operator.has_shared:
            raise PlanError(f"{self.name}: a broadcast state needs a second stream: give it as broadcastStream")
        store = KeyedStore(self._operator.key_schema, declarations.specs, declarations.dropped)
        return store, KeyedStore(pa.schema([]), declarations.shared, declarations.dropped)

    def _restore_shared(self, restored: Sequence[State]) -> None:
        """Take what is the same in all tasks out of one of their states."""
        there = [state for state in (PartOfState(each, SHARED) for each in restored) if state]
        if there:
            state = there[self._context.subtask % len(there)]
            width = About.of(state[ABOUT], self._context.place).parallelism
            self._moment.shared.restore([state], replace(self._context, parallelism=width), self._moment.now)

    def _handled(self, batch: pa.RecordBatch, *, is_shared: bool) -> list[pa.RecordBatch]:
        """The rows that a batch of one of the two streams gives."""
        if is_shared:
            self._moment.is_shared = True
            given = list(self._made_calls.shared(batch, self._times))
            self._moment.is_shared = False
            self._moment.shared.tidy(self._moment.now)
            return given
        given = list(self._made_calls.rows(self._keys_of(batch), batch, self._times))
        self._moment.store.tidy(self._moment.now)
        return given

    def _keys_of(self, batch: pa.RecordBatch) -> Keys:
        store = self._moment.store
        return self._numbers.keys(
            store, store.slots([batch.column(key) for key in self._operator.keys], batch.num_rows)
        )

    def _give_initial(self, batch: pa.RecordBatch) -> None:
        """Give the processor the rows of the initial state that are this subtask's."""
        context, keys = self._context, self._operator.keys
        if keys:
            owners = GroupOwners(context.max_parallelism, context.parallelism).of(
                [plain(batch.column(key)) for key in keys]
            )
            batch = batch.take(int64_array(np.flatnonzero(owners == context.subtask)))
        elif context.subtask:
            return
        if batch.num_rows:
            self._made_calls.initial(self._keys_of(batch), batch, self._times)

    def _fire_expired(self) -> Iterable[pa.RecordBatch]:
        """The rows of all timers of the clock that have expired, all at once, as no later call takes the rest."""
        self._look_at_clock()
        timers, now = self._moment.store.timers, self._moment.now
        while timers.next is not None and timers.next <= now:
            yield from self._fire(now)

    def _fire_due(self) -> Iterable[pa.RecordBatch]:
        """The rows of timers of event time that have expired, and of those that these register."""
        timers, watermark = self._moment.store.timers, self._time.watermark
        while timers.next is not None and timers.next <= watermark.milliseconds:
            yield from self._fire(watermark.milliseconds)

    def _fire_all(self) -> Iterable[pa.RecordBatch]:
        """The rows of all timers that wait now, in order of time; those that they register do not fire."""
        self._look_at_clock()
        timers = self._moment.store.timers
        timers.end()
        while timers.next is not None:
            yield from self._fire(_FOR_EVER, is_end=True)

    def _fire(self, now: int, *, is_end: bool = False) -> list[pa.RecordBatch]:
        """The rows of some of the timers that are due."""
        store, calls = self._moment.store, self._made_calls
        take = store.timers.take_firsts if calls.has_keys_once else store.timers.take
        slots, times = take(now, calls.most_timers)
        if not len(slots):
            return []
        keys = self._numbers.keys(store, slots)
        given = list(calls.timers(keys, times, self._times, None if is_end else int(times[-1])))
        if calls.has_keys_once:
            store.timers.forget_again()  # one that its own call registers again is gone after that, as in PySpark
        if not is_end:
            store.tidy(self._moment.now)
        return given

    def _look_at_clock(self) -> None:
        """The time of the next calls; a clock that is put back stands still."""
        if self._operator.time_mode != NONE:
            self._moment.now = max(self._moment.now, int(self._context.clock() * _MILLISECONDS))

    @property
    def _times(self) -> TimerValues:
        if self._operator.time_mode == NONE:
            return TimerValues()
        self._look_at_clock()
        watermark = self._time.watermark
        return TimerValues(self._moment.now, 0 if watermark.is_none else watermark.milliseconds)  # as in PySpark

    @property
    def _made_calls(self) -> ProcessorCalls:
        assert self._calls is not None  # noqa: S101 - opened before
        return self._calls
