# SPDX-License-Identifier: Apache-2.0
"""The Spark jobs of one job of ours: which there are, what each carries, which are still to return. Pure.

Two kinds: a Spark job of workers, each a Spark task that asks the JobMaster for one subtask after the other; and one
for each vertex that reads a DataFrame, whose tasks can be no other subtasks than those of their partitions. A Spark
job that was given up, because its DataFrame is to be read once more, counts until it has returned; what it says then
is of no interest.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.graph.job_graph import JobVertex


@dataclass(frozen=True, slots=True)
class LaunchPart:
    """One Spark job: its number, and either the numbers of its workers or the vertex whose DataFrame it reads."""

    part: int
    workers: tuple[int, ...] = ()
    vertex: int | None = None


class Parts:
    """The Spark jobs of one job; those of workers count down from -1, the others up from the vertex's number."""

    def __init__(self, vertices: int) -> None:
        self._next_frame = vertices
        self._next_workers = -1
        self._next_worker = 0
        self._open: dict[int, LaunchPart] = {}
        self._frames: dict[int, int] = {}
        self._confirmed: set[int] = set()
        self._slots: dict[int, int] = {}
        self._cancelled: set[int] = set()

    @property
    def all_returned(self) -> bool:
        """Whether no Spark job is under way."""
        return not self._open

    @property
    def frame_slots(self) -> int:
        """The slots of the DataFrames that are being read."""
        return sum(self._slots.values())

    def workers(self, count: int) -> LaunchPart:
        """A Spark job of so many workers."""
        first, self._next_worker = self._next_worker, self._next_worker + count
        launched = LaunchPart(self._next_workers, tuple(range(first, first + count)))
        self._next_workers -= 1
        self._open[launched.part] = launched
        return launched

    def frame(self, vertex: JobVertex, slots: int) -> LaunchPart:
        """A Spark job over a vertex's DataFrame, which was given so many slots; again after `give_up`."""
        part = vertex.id
        if vertex.id in self._frames:
            part, self._next_frame = self._next_frame, self._next_frame + 1
        launched = LaunchPart(part, vertex=vertex.id)
        self._frames[vertex.id] = part
        self._open[part] = launched
        self._slots[part] = slots
        self._confirmed.discard(vertex.id)
        return launched

    def is_launched(self, vertex: int) -> bool:
        """Whether a vertex's DataFrame is being read or has been."""
        return self._frames.get(vertex, -1) >= 0

    def part_of(self, vertex: int) -> int:
        """The Spark job that reads a vertex's DataFrame now; -1 where there is none."""
        return self._frames.get(vertex, -1)

    def is_confirmed(self, vertex: int) -> bool:
        """Whether the Spark job that reads a vertex's DataFrame has returned well."""
        return vertex in self._confirmed

    def confirm(self, vertex: int) -> None:
        """The vertex's DataFrame was read to its end."""
        self._confirmed.add(vertex)

    def give_up(self, vertex: int) -> int | None:
        """The vertex's DataFrame will be read again: the Spark job to cancel, if it is still under way."""
        part = self._frames.get(vertex, -1)
        self._frames[vertex] = -1
        self._confirmed.discard(vertex)
        return part if part in self._open else None

    def cancel(self, part: int) -> bool:
        """We cancel a Spark job; whether that is new."""
        is_new = part in self._open and part not in self._cancelled
        self._cancelled.add(part)
        return is_new

    def was_cancelled(self, part: int) -> bool:
        """Whether we have cancelled a Spark job, so that its end is no news."""
        return part in self._cancelled

    def returned(self, part: int) -> LaunchPart | None:
        """A Spark job is over: what it was, or None where that is known already."""
        self._slots.pop(part, None)
        return self._open.pop(part, None)

    def is_current(self, launched: LaunchPart) -> bool:
        """Whether anybody cares how it ended: it was not given up."""
        return launched.vertex is None or self._frames.get(launched.vertex) == launched.part

    def open_workers(self) -> list[int]:
        """The Spark jobs of workers that have not returned."""
        return [launched.part for launched in self._open.values() if launched.vertex is None]

    def open_frames(self) -> list[int]:
        """The vertices of the DataFrame jobs that have not returned, given up or not."""
        return [launched.vertex for launched in self._open.values() if launched.vertex is not None]
