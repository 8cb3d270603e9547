# SPDX-License-Identifier: Apache-2.0
"""Rows of a stream without those whose keys came before: `dropDuplicates` and `dropDuplicatesWithinWatermark`.

The first row of each key passes at once. Without a time each key is kept for ever. With one a key is dropped when the
watermark has passed its time, plus the delay for `dropDuplicatesWithinWatermark`; rows that are older than the
watermark are late then: they are counted, and nothing else, because it is not known any more if they came before.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from penstock.errors import PlanError
from penstock.operators.group_merges import boolean_array
from penstock.operators.keys import plain
from penstock.operators.times import Times
from penstock.operators.windows import times_in
from penstock.record.layout import fixed_values, int64_array
from penstock.stream.chain import Chunk, PlainStep, State, StepContext
from penstock.stream.increments import Chains
from penstock.stream.key_index import KeyIndex, Slots, key_index
from penstock.stream.keyed_state import (
    ABOUT,
    chained_chunks,
    key_columns,
    refuse_other,
    restored_changes,
    restored_rows,
)
from penstock.stream.lateness import Lateness
from penstock.stream.row_increments import LiveRows, Mask
from penstock.stream.slot_array import FrozenSlots, SlotArray
from penstock.stream.state_place import state_figures
from penstock.stream.watermark import LEAST, MOST, Watermark

_SPARE = 1 << 12


@dataclass(frozen=True, slots=True)
class DropDuplicates:
    """The first row of each key, after an exchange by the keys. `time` empty: keys are kept for ever."""

    schema: pa.Schema
    keys: tuple[str, ...]
    time: str = ""
    keeps: int = 0
    uid: str = ""

    @property
    def name(self) -> str:
        """The name that `explain` shows."""
        kept = f", kept by {self.time}" if self.time else ""
        return f"without duplicates by {', '.join(self.keys) or 'nothing'}{kept}"

    def apply(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises PlanError: bounded streams have verbs of their own for it."""
        raise PlanError(f"{self.name} is for streams without an end")

    def step(self) -> DuplicatesStep:
        """The step of one subtask."""
        return DuplicatesStep(self)


class DuplicatesStep(PlainStep):
    """One subtask's keys, each with the time up to which it is kept."""

    def __init__(self, operator: DropDuplicates) -> None:
        self._operator = operator
        self._kinds = [plain(pa.nulls(0, operator.schema.field(key).type)).type for key in operator.keys]
        self._index: KeyIndex = key_index(self._kinds)
        self._until = SlotArray(np.int64, LEAST)
        self._lateness = Lateness()
        self._chains = Chains()
        self._context = StepContext(0, 1, 1, "")

    @property
    def name(self) -> str:
        """The name for messages."""
        return self._operator.name

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Take this subtask's keys; raises CheckpointError for those of another step."""
        self._context = context
        self._lateness.open(context, restored)
        rows, changes = (read(self._what, restored, context) for read in (restored_rows, restored_changes))
        for batch in itertools.chain(rows, changes):
            live = _is_live(self._lateness, batch.columns)
            own = batch if live.all() else batch.filter(boolean_array(live))  # others had gone with the checkpoint
            slots = self._index.slots(key_columns(own) or [own.column(0)])
            self._until.writable(slots, len(self._index))[slots] = _until(own.columns)

    def check(self, names: Collection[str], read: Callable[[str], Sequence[bytes]]) -> None:
        """Raise CheckpointError where the keys of a checkpoint are of another step."""
        if ABOUT in names:
            refuse_other(self._what, read(ABOUT), self.name)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The rows whose keys have not come before."""
        operator = self._operator
        if not operator.time:
            slots = self._slots(batch)
            return self._first(batch, slots, np.full(len(slots), MOST, np.int64))
        times, missing = times_in(batch.column(operator.time))
        if missing is not None:  # a row without a time is never late, and its key is kept for ever
            times = np.where(missing, MOST - operator.keeps, times)
        passed = self._lateness.passed([plain(batch.column(key)) for key in operator.keys])
        is_late = passed.is_late(times)
        if is_late.any():
            self._lateness.late_rows += int(is_late.sum())
            batch, times = batch.filter(boolean_array(~is_late)), times[~is_late]
        if not batch.num_rows:
            return ()
        return self._first(batch, self._slots(batch), times + operator.keeps)

    def on_watermark(self, watermark: Watermark) -> Iterable[pa.RecordBatch]:
        """Drop keys that it has passed, when they are more than those that stay."""
        self._lateness.advance(watermark)
        if self._operator.time and len(self._index) > _SPARE:
            live = self._live()
            if 2 * len(live) < len(self._index):
                keys, until = self._index.keys(live), self._until.at(live)
                self._index, self._until = key_index(self._kinds), SlotArray(np.int64, LEAST)
                slots = self._index.add(keys)
                self._until.writable(slots, len(self._index))[slots] = until
                self._chains.forget()
        return ()

    def snapshot(self, checkpoint: int) -> list[Chunk]:
        """The keys that are kept; a large state refers to what older checkpoints hold."""
        is_live = partial(_is_live, copy.copy(self._lateness))
        rows = LiveRows(self._index, _FrozenTimes(self._until.frozen(len(self._index))), is_live)
        place = (checkpoint, self._context)
        return [
            self._lateness.chunk(),
            *chained_chunks(self._what, place, self._chains, rows, rows, rows.key_columns),
        ]

    def completed(self, checkpoint: int) -> None:
        """Snapshots may refer to it from here on."""
        self._chains.completed(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Rows that were late, and those of the state."""
        return {**self._lateness.figures(), **state_figures(len(self._index), self._index, self._until)}

    @property
    def _what(self) -> str:
        return f"{self.name} ({', '.join(str(kind) for kind in self._kinds)})"

    def _slots(self, batch: pa.RecordBatch) -> Slots:
        return self._index.slots([plain(batch.column(key)) for key in self._operator.keys] or [batch.column(0)])

    def _live(self) -> Slots:
        """The slots of keys that are kept."""
        until = self._until.at(np.arange(len(self._index)))
        return np.flatnonzero(self._lateness.watermark.keeps(until))

    def _first(self, batch: pa.RecordBatch, slots: Slots, kept: Times) -> Iterable[pa.RecordBatch]:
        """The first row of each key that is not kept; its key is kept from here on."""
        fresh = np.flatnonzero(~self._lateness.watermark.keeps(self._until.at(slots)))
        if not len(fresh):
            return ()
        _, places = np.unique(slots[fresh], return_index=True)
        chosen = np.sort(fresh[places])
        own = slots[chosen]
        self._chains.changed(own)
        self._until.writable(own, len(self._index))[own] = kept[chosen]
        return (batch if len(chosen) == batch.num_rows else batch.take(int64_array(chosen)),)


class _FrozenTimes:
    """The times up to which keys are kept, at one moment."""

    def __init__(self, until: FrozenSlots) -> None:
        self._until = until
        self.width = until.width

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        """Those of these slots, which are in ascending order."""
        return slots, [int64_array(self._until.at(slots))]


def _is_live(lateness: Lateness, columns: Sequence[pa.Array]) -> Mask:
    """A mask of the keys of these columns, the time up to which each is kept behind them, that are kept."""
    return lateness.passed(columns[:-1]).keeps(_until(columns))


def _until(columns: Sequence[pa.Array]) -> Times:
    return fixed_values(columns[-1], np.dtype(np.int64))
