# SPDX-License-Identifier: Apache-2.0
"""The watermark by which a step with keyed event-time state judges its rows, also after a restore.

A step that goes on at another number of tasks gets keys of several former tasks, whose watermarks differ: what one of
them has given out for its keys must not be given out again, and what another has not is still due. So each key group
keeps the watermark of the task that had it, until the step's own has passed all of these. That is the least of them,
and goes on from there: the task itself may begin with an earlier one, of a task that had none of its keys.

The chunk `time` is msgpack: version, watermarks (one, or those of the subtask's key groups), rows that were late,
subtask, parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgpack
import pyarrow as pa

from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.record.key_groups import GroupOwners, group_range
from penstock.stream.chain import Chunk, State, StepContext
from penstock.stream.watermark import Passed, Watermark, Watermarks

TIME: Final = "time"
_VERSION: Final = 1


class Lateness:
    """The watermark and the late rows of one subtask."""

    def __init__(self) -> None:
        self._own = Watermark()
        self.late_rows = 0
        """Rows that came too late, in this run and those before it."""
        self._late_before = 0
        self._context = StepContext(0, 1, 1, "")
        self._of_group: Watermarks | None = None
        self._groups: GroupOwners | None = None

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Begin where the tasks were whose keys this one has now; raises CheckpointError where that can't be read."""
        self._context = context
        parts = [_read(state[TIME], context.place) for state in restored if TIME in state]
        width = context.max_parallelism
        if not parts:
            return
        of_group = Watermarks.none(width)
        for watermarks, late, subtask, parallelism in parts:
            of_group.put(group_range(width, parallelism, subtask), watermarks)
            if parallelism == context.parallelism or context.subtask == 0:  # each count goes on in one task
                self.late_rows += late
        self._late_before = self.late_rows
        own = of_group.of(self._own_groups)
        self._own = own.least
        if own.greatest > own.least:
            self._of_group, self._groups = of_group, GroupOwners(width, width)

    @property
    def watermark(self) -> Watermark:
        """The watermark that holds for all keys."""
        return self._own

    def passed(self, keys: Sequence[pa.Array]) -> Passed:
        """The times that have passed for each of these keys; without any they are those of the task with all rows."""
        if self._of_group is None or self._groups is None:
            return self._own
        if not keys:  # the first task has them, and the first groups
            return max(self._own, self._of_group.of([0]).greatest)
        return self._of_group.of(self._groups.of(keys)).or_later(self._own)

    def reached(self, watermark: Watermark) -> Watermark:
        """The watermark that holds for all keys where this one comes: it may be before that of the restored state."""
        return max(self._own, Watermark.at(watermark))

    def advance(self, watermark: Watermark) -> None:
        """A watermark has come."""
        self._own = self.reached(watermark)
        if self._of_group is not None and self._own >= self._of_group.greatest:
            self._of_group = self._groups = None

    def figures(self) -> dict[str, float]:
        """The rows that were late, and how many of these a checkpoint had told of."""
        return {"rows_late": float(self.late_rows), "rows_late_before": float(self._late_before)}

    def chunk(self) -> Chunk:
        """The state as it is now."""
        context, watermarks = self._context, Watermarks.of_one(self._own)
        if self._of_group is not None:
            watermarks = self._of_group.of(self._own_groups).or_later(self._own)
        values = (_VERSION, watermarks.moments, self.late_rows, context.subtask, context.parallelism)
        packed: bytes = msgpack.packb(values)
        return TIME, lambda: packed

    @property
    def _own_groups(self) -> list[int]:
        context = self._context
        return list(group_range(context.max_parallelism, context.parallelism, context.subtask))


def _read(packed: bytes, place: str) -> tuple[list[int], int, int, int]:
    try:
        version, watermarks, late, subtask, parallelism = msgpack.unpackb(packed)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptCheckpointError(f"{place}: its event time can't be read: {error!r}") from error
    if version != _VERSION:
        raise CheckpointError(f"{place}: its event time is of version {version}; this Penstock reads {_VERSION}")
    return list(watermarks), int(late), int(subtask), int(parallelism)
