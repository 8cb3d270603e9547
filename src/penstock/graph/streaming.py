# SPDX-License-Identifier: Apache-2.0
"""The options that make a job a streaming query, and the words that only its tasks are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.shuffle.ids import Wire

EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"
AT_CHECKPOINT = "checkpoint"
CONTINUOUS = "continuous"
"""When rows in flight are written: while a checkpoint is taken, or as they are given to their channels."""
EXACT = "exact"
APPROXIMATE = "approximate"
"""After a failure all tasks begin anew, so that no row is lost, or those alone that have failed."""
KEY_GROUP_HASH = "spark-murmur3-42"
"""The hash that puts keys into key groups; it is fixed for ever, and written into every checkpoint."""


SOURCE_POSITION = "source/position"
"""The name of the chunk that holds the position of a source's task."""


@dataclass(frozen=True, slots=True)
class StreamingOptions:
    """A streaming query: its vertices run all at once, and what fails goes on from its last checkpoint. Seconds.

    `query` is the id that it keeps over restarts and drivers. `location` is a URI, or a path that all hosts share.
    `interval` None: checkpoints only when a caller asks, and one at the end. `tolerable_failures` is how many
    checkpoints may fail one after the other; `max_parallelism` the number of key groups. With `unaligned` barriers
    overtake rows, once a checkpoint has been aligned for `aligned_timeout`, and `persist_in_flight` says when these
    rows are written (AT_CHECKPOINT or CONTINUOUS), as it does with APPROXIMATE; `recover_without_in_flight` drops the
    rows in flight of the checkpoint that the query begins with; `rescale_by_function` lets a user's function deal
    them out to another number of tasks. At a location without checkpoints the query begins with `savepoint`. With
    `available_now` it stops by itself when its sources have given what was there at their beginning. `recovery` is
    EXACT or APPROXIMATE.
    """

    query: str
    name: str
    location: str
    interval: float | None = 10.0
    timeout: float = 600.0
    min_pause: float = 0.0
    max_concurrent: int = 1
    tolerable_failures: int = 10
    retained: int = 2
    consistency: str = EXACTLY_ONCE
    buffer_timeout: float = 0.1
    max_parallelism: int = 128
    unaligned: bool = False
    aligned_timeout: float = 0.0
    recover_without_in_flight: bool = False
    rescale_by_function: bool = False
    persist_in_flight: str = AT_CHECKPOINT
    savepoint: str = ""
    available_now: bool = False
    recovery: str = EXACT

    @property
    def restarts_alone(self) -> bool:
        """True if a task that fails begins anew alone, and rows under way to and from it are lost."""
        return self.recovery == APPROXIMATE

    @property
    def logs_for_readers(self) -> bool:
        """True if rows are logged as they are given out, so that a task which begins anew alone reads them again."""
        return self.restarts_alone and self.persist_in_flight == CONTINUOUS

    @property
    def has_logs(self) -> bool:
        """True if tasks write logs, whatever for."""
        return self.logs_in_flight or self.logs_for_readers

    @property
    def logs_in_flight(self) -> bool:
        """True if rows in flight are logged as they are given out."""
        return self.unaligned and self.persist_in_flight == CONTINUOUS


@dataclass(frozen=True, slots=True)
class StreamDeployment:
    """The beginning of a task of a streaming query.

    `owner` is the location's, `<epoch>-<token>`. `restored` are parts of a checkpoint, each with its name and the
    handle that the task which wrote it gave: the subtask's own, or all of its vertex where the parallelism has
    changed. `is_finished`: it had handled all of its data in that checkpoint. `widths` are the stages' numbers of
    tasks in it, by uid; where they have changed, or rows are logged, `restored` also holds the parts of the stages in
    front, for their rows in flight. `drops_in_flight`: those are lost, as the user chose. `behind` is the newest
    checkpoint that was begun before this attempt. `goes_on`: tasks that run have taken part in the checkpoint, so its
    positions are those of their rows.
    """

    owner: str
    is_finished: bool = False
    restored: tuple[tuple[str, bytes], ...] = ()
    widths: tuple[tuple[str, int], ...] = ()
    drops_in_flight: bool = False
    behind: int = 0
    goes_on: bool = False

    def to_wire(self) -> Wire:
        """Plain tuple for a control message."""
        first = (self.owner, self.is_finished, self.restored, self.widths)
        return (*first, self.drops_in_flight, self.behind, self.goes_on)

    @classmethod
    def from_wire(cls, wire: Wire) -> StreamDeployment:
        """Inverse of `to_wire`."""
        owner, is_finished, restored, widths, drops, behind, goes_on = wire
        parts = tuple((str(name), bytes(handle)) for name, handle in restored)  # type: ignore[attr-defined]
        counts = tuple((str(uid), int(count)) for uid, count in widths)  # type: ignore[attr-defined]
        return cls(
            str(owner),
            bool(is_finished),
            parts,
            counts,
            bool(drops),
            int(behind),  # type: ignore[call-overload]
            bool(goes_on),
        )


def part_name(uid: str, subtask: int) -> str:
    """The name of a subtask's part in a checkpoint."""
    return f"{uid}.{subtask}"


def vertex_of_part(part: str) -> tuple[str, int]:
    """The uid of the vertex and the number of the subtask that a part's name says."""
    uid, _, number = part.rpartition(".")
    return uid, int(number)


@dataclass(frozen=True, slots=True)
class SourceReads:
    """The words for a source's input, which stay the same from run to run, and its partitions if these have names."""

    what: str
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SavedParts:
    """A complete checkpoint: the handle of each part by its name, and the parts of tasks that had finished.

    `parallelism` is by the vertices' uids. `seconds` is how long it took, `figures` what each part did. `is_logged`:
    rows in flight lie in the logs of the tasks that gave them. `sources` says by uid what the positions are of.
    """

    checkpoint: int
    parts: Mapping[str, bytes]
    finished: frozenset[str] = frozenset()
    parallelism: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    is_logged: bool = False
    sources: Mapping[str, SourceReads] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryBeginning:
    """The finds of a driver that took over a query's location: its own name there, the checkpoint to go on from.

    `older` are the checkpoints in front of that one that are kept too, newest first.
    """

    owner: str = ""
    saved: SavedParts | None = None
    older: tuple[SavedParts, ...] = ()
