# SPDX-License-Identifier: Apache-2.0
"""State of any type: the newest row of each slot, in batches that are never changed.

New rows of a slot come after the old ones, and `where` says which row counts. So a snapshot is a reference to the
batches and to `where`, which goes on in another array. Batches of similar size are joined, so there are few; when
more rows are old than new, the new ones are gathered, some at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.stream.arrow_pieces import rows_of_piece, width_of
from penstock.stream.key_index import Slots
from penstock.stream.run_rows import GATHERED_SLOTS, add_run, taken_rows
from penstock.stream.slot_array import FrozenSlots, SlotArray
from penstock.stream.state_place import bytes_of

NOWHERE = -1
SPARE_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """The rows of all slots at one moment."""

    runs: tuple[pa.RecordBatch, ...]
    where: FrozenSlots
    schema: pa.Schema

    @property
    def width(self) -> float:
        """The bytes of a row, on average."""
        return width_of(self.runs, sum(run.num_rows for run in self.runs))

    def columns(self, start: int, end: int) -> list[pa.Array]:
        """The state columns of a range of slots."""
        columns: list[pa.Array] = taken_rows(self.runs, self.schema, self.where.values(start, end)).columns
        return columns

    def present(self, start: int, end: int) -> tuple[Slots, list[pa.Array]]:
        """Of a range of slots those that have a row, and the columns of these rows."""
        places, columns = self._there(self.where.values(start, end))
        return places + start, columns

    def of(self, slots: Slots) -> tuple[Slots, list[pa.Array]]:
        """The same of these slots, which are in ascending order."""
        places, columns = self._there(self.where.at(slots))
        return slots[places], columns

    def _there(self, where: npt.NDArray[np.int64]) -> tuple[Slots, list[pa.Array]]:
        places = np.flatnonzero(where != NOWHERE)
        return places, taken_rows(self.runs, self.schema, where[places]).columns


class StateRows:
    """The state columns of one subtask's slots."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._runs: list[pa.RecordBatch] = []
        self._rows = 0
        self._where = SlotArray(np.int64, NOWHERE)
        self._slots = 0
        self._live = 0

    @property
    def live(self) -> int:
        """The number of slots that have a row."""
        return self._live

    @property
    def nbytes(self) -> int:
        """Its bytes, with those of old rows that are still there."""
        return bytes_of((*self._runs, self._where))

    def known(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which of these slots have a row."""
        known: npt.NDArray[np.bool_] = self._where.at(slots) != NOWHERE
        return known

    def take(self, slots: Slots) -> pa.RecordBatch:
        """The rows of these slots, all of which have one."""
        return taken_rows(self._runs, self._schema, self._where.at(slots))

    def get(self, slots: Slots) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """The rows of these slots, of nulls where there is none, and where there is one."""
        known = self.known(slots)
        schema = pa.schema([field.with_nullable(True) for field in self._schema])
        if known.all():
            return known, pa.RecordBatch.from_arrays(self.take(slots).columns, schema=schema)
        # Row 0 of the known ones stands where there is none, and is made null.
        there = self.take(slots[known])
        at = pa.Array.from_buffers(
            pa.int64(),
            len(slots),
            [pa.py_buffer(np.packbits(known, bitorder="little")), pa.py_buffer(np.cumsum(known, dtype=np.int64) - 1)],
        )
        return known, pa.RecordBatch.from_arrays([column.take(at) for column in there.columns], schema=schema)

    def put(self, slots: Slots, rows: pa.RecordBatch) -> None:
        """Replace the rows of these slots, each of which is there once."""
        where = self._writable(slots)
        self._live += int(np.count_nonzero(where[slots] == NOWHERE))
        where[slots] = np.arange(self._rows, self._rows + rows.num_rows, dtype=np.int64)
        add_run(self._runs, rows)
        self._rows += rows.num_rows
        if self._rows > 2 * self._live + SPARE_ROWS:
            self._gather()

    def remove(self, slots: Slots) -> None:
        """Remove the rows of these slots, each of which is there once."""
        where = self._writable(slots)
        self._live -= int(np.count_nonzero(where[slots] != NOWHERE))
        where[slots] = NOWHERE

    def move(self, slots: Slots, to: Slots) -> None:
        """Give rows other slots, which have none."""
        where = self._writable(np.concatenate([slots, to]))
        where[to] = where[slots]
        where[slots] = NOWHERE

    def frozen(self, count: int) -> FrozenRows:
        """All rows of the first slots, which all have one, as they are now."""
        return FrozenRows(tuple(self._runs), self._where.frozen(count), self._schema)

    def _gather(self) -> None:
        """Leave out the old rows."""
        former = self.frozen(self._slots)
        self._runs, self._rows, self._live = [], 0, 0
        self._where = SlotArray(np.int64, NOWHERE)
        step = rows_of_piece(former.width, GATHERED_SLOTS)
        for start in range(0, self._slots, step):
            slots, columns = former.present(start, min(self._slots, start + step))
            if len(slots):
                self.put(slots, pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _writable(self, slots: Slots) -> npt.NDArray[np.int64]:
        """The places of the rows of all slots, these among them."""
        self._slots = max(self._slots, int(slots.max(initial=-1)) + 1)
        return self._where.writable(slots, self._slots)
