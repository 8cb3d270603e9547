# SPDX-License-Identifier: Apache-2.0
"""The watermark by which a step with keyed event-time state judges its rows, also after a restore.

A step that goes on at another number of tasks gets keys of several former tasks, whose watermarks differ: what one of
them has given out for its keys must not be given out again, and what another has not is still due. So each key group
keeps the watermark of the task that had it, until the step's own has passed all of these.

The chunk `time` is msgpack: version, watermarks (one, or those of the subtask's key groups), rows that were late,
subtask, parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgpack
import numpy as np
import pyarrow as pa

from penstock.checkpoint.errors import CheckpointError, CorruptCheckpointError
from penstock.operators.group_merges import Mask
from penstock.operators.times import Times
from penstock.record.key_groups import GroupOwners, group_range
from penstock.stream.chain import Chunk, State, StepContext
from penstock.stream.watermarks import LEAST, MOST

TIME: Final = "time"
_VERSION: Final = 1


class Lateness:
    """One subtask's."""

    def __init__(self) -> None:
        self.watermark = LEAST
        self.late_rows = 0
        """Rows that came too late, in this run and those before it."""
        self._late_before = 0
        self._context = StepContext(0, 1, 1, "")
        self._of_group: Times | None = None
        self._groups: GroupOwners | None = None

    def open(self, context: StepContext, restored: Sequence[State]) -> None:
        """Begin where the tasks were whose keys this one has now; raises CheckpointError where that can't be read."""
        self._context = context
        parts = [_read(state[TIME], context.place) for state in restored if TIME in state]
        width = context.max_parallelism
        of_group = np.full(width, LEAST, np.int64)
        for watermarks, late, subtask, parallelism in parts:
            of_group[list(group_range(width, parallelism, subtask))] = watermarks
            if parallelism == context.parallelism or context.subtask == 0:  # each count goes on in one task
                self.late_rows += late
        self._late_before = self.late_rows
        own = of_group[self._own_groups]
        self.watermark = int(own.min(initial=MOST)) if parts else LEAST
        if parts and int(own.max(initial=LEAST)) > self.watermark:
            self._of_group, self._groups = of_group, GroupOwners(width, width)

    def passed(self, keys: Sequence[pa.Array]) -> Times | int:
        """The watermark that holds for each of these keys; one number where it is the same for all."""
        if self._of_group is None or self._groups is None or not keys:
            return self.watermark
        passed: Times = np.maximum(self._of_group[self._groups.of(keys)], self.watermark)
        return passed

    def keeps(self, last: Times, keys: Sequence[pa.Array] = ()) -> Mask:
        """A mask of what is not over: its last moment has not passed for its key, or for all where no keys are given.

        The least moment of all stands for none.
        """
        return np.asarray(last >= np.maximum(self.passed(keys), LEAST + 1))

    def advance(self, watermark: int) -> None:
        """A watermark has come."""
        self.watermark = watermark
        if self._of_group is not None and watermark >= int(self._of_group.max()):
            self._of_group = self._groups = None

    def figures(self) -> dict[str, float]:
        """The rows that were late, and how many of these a checkpoint had told of."""
        return {"rows_late": float(self.late_rows), "rows_late_before": float(self._late_before)}

    def chunk(self) -> Chunk:
        """The state as it is now."""
        context = self._context
        watermarks = [self.watermark]
        if self._of_group is not None:
            watermarks = np.maximum(self._of_group[self._own_groups], self.watermark).tolist()
        values = (_VERSION, watermarks, self.late_rows, context.subtask, context.parallelism)
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
