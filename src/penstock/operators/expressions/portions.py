# SPDX-License-Identifier: Apache-2.0
"""Rows computed in portions, where what is computed of a batch is more than Arrow or memory takes at once.

A row may get a long text: a constant, `repeat`, `concat`. Arrow counts the bytes of a batch of strings by 32 bits.
A batch whose results do not fit is halved, and what follows is cut so that its results are a few megabytes. One row
must fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from penstock.record.row_sizes import MOST_BYTES

_TOO_MUCH = (
    "offset overflow while concatenating",
    "overflowed binary array capacity",
    "might not fit in a 32bit",
    "cannot contain more than",
    "would exceed",
    "cannot reserve",
)
"""Arrow's words about results beyond 32 bits."""


_MANY_ROWS = 4096
_FEW_ROWS = 16
"""So many are computed ahead of the first batch that has more than the others, to see how large results are."""


class Portions:
    """Computes the batches of one operator, and remembers how many rows are computed at once."""

    def __init__(self, compute: Callable[[pa.RecordBatch], pa.RecordBatch], *, may_grow: bool) -> None:
        self._compute = compute
        self._most: int | None = None
        self._is_new = may_grow

    def of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batches that are computed of a batch."""
        if self._is_new and batch.num_rows > _MANY_ROWS:
            self._is_new = False
            self._look_at(self._compute(batch.slice(0, _FEW_ROWS)), _FEW_ROWS, batch)
        start = 0
        while True:
            part = batch if not start and self._is_small(batch) else batch.slice(start, self._most)
            try:
                made = self._compute(part)
            except Exception as error:
                if part.num_rows <= 1 or not is_too_much(error):
                    raise
                self._most = part.num_rows // 2
                continue
            start += part.num_rows
            self._look_at(made, part.num_rows, part)
            yield made
            if start >= batch.num_rows:
                return

    def _look_at(self, made: pa.RecordBatch, rows: int, batch: pa.RecordBatch) -> None:
        """Compute fewer rows at once where what was made of these shows that all of the batch is too large."""
        if made.nbytes * batch.num_rows > max(MOST_BYTES, 2 * batch.nbytes) * rows:
            self._most = max(1, rows * MOST_BYTES // made.nbytes)

    def _is_small(self, batch: pa.RecordBatch) -> bool:
        return self._most is None or batch.num_rows <= self._most


def is_too_much(error: BaseException) -> bool:
    """Tell whether an error, or one that it came of, is Arrow's for results beyond 32 bits."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, pa.ArrowCapacityError) or (
            isinstance(cause, pa.ArrowInvalid) and any(text in str(cause) for text in _TOO_MUCH)
        ):
            return True
        cause = cause.__cause__
    return False
