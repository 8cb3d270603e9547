# SPDX-License-Identifier: Apache-2.0
"""The most frequent keys of a task's input, from a few rows that are looked at now and then.

Twice a second some rows of one batch are looked at, evenly spaced, and their keys counted; old counts fade. Nothing
is done for the other rows and batches. Told are the few keys that have a large share. Limits: it is a sample: a key
that has less than a tenth of the rows is not seen for sure. Keys are shown as text, cut where they are long.
"""

from __future__ import annotations

import heapq
from contextlib import suppress

import pyarrow as pa

from penstock.shuffle.metrics import KEY_GROUP

LOOK_SECONDS = 0.5
ROWS = 32
"""Looked at in one batch, or a few more."""
FADING = 0.9
"""The part of its count that a key keeps from one look to the next: the last ten looks or so decide."""
SHARE = 0.1
KEYS = 3
"""At most so many keys are told, each with at least that share."""
_TEXT = 80
_LEAST_ROWS = 64.0
"""Nothing is told of fewer rows."""


class FrequentKeys:
    """The keys of one task's input; without columns it looks at nothing."""

    def __init__(self, columns: tuple[str, ...] = ()) -> None:
        self._columns = columns
        self._counts: dict[str, float] = {}
        self._rows = 0.0
        self._due = 0.0

    def look(self, batch: pa.RecordBatch, now: float) -> None:
        """Look at some rows of a batch, if it is time."""
        if not self._columns or now < self._due or not batch.num_rows:
            return
        self._due = now + LOOK_SECONDS
        columns = [_readable(batch.column(name)) for name in self._columns]
        step = max(1, batch.num_rows // ROWS)
        with suppress(ValueError, OverflowError):  # a time that Python does not know: its rows are not counted
            found = [_text(columns, place) for place in range(0, batch.num_rows, step)]
            self._fade()
            self._rows += len(found)
            for key in found:
                self._counts[key] = self._counts.get(key, 0.0) + 1

    def figures(self) -> dict[str, float]:
        """The shares of the most frequent keys, as they are reported."""
        if self._rows < _LEAST_ROWS:
            return {}
        most = heapq.nlargest(KEYS, self._counts.items(), key=lambda pair: pair[1])
        shares = ((key, count / self._rows) for key, count in most)
        return {KEY_GROUP + key: round(share, 3) for key, share in shares if share >= SHARE}

    def _fade(self) -> None:
        self._rows *= FADING
        self._counts = {key: count * FADING for key, count in self._counts.items() if count > SHARE}


def _readable(column: pa.Array) -> pa.Array:
    """Times in nanoseconds as numbers: Arrow makes objects of pandas of them, and imports that."""
    kind = column.type
    is_fine = (pa.types.is_timestamp(kind) or pa.types.is_duration(kind)) and kind.unit == "ns"
    return column.view(pa.int64()) if is_fine else column


def _text(columns: list[pa.Array], place: int) -> str:
    return ", ".join(str(column[place].as_py()) for column in columns)[:_TEXT]
