# SPDX-License-Identifier: Apache-2.0
"""The life of a result partition as a table `(state, event) -> state`.

Rules:

- All transitions are in this file. A missing pair is illegal and raises with the last events of the partition.
- The four ends are different answers to a reader (RELEASED, EXPIRED, LOST, FAILED) and the first one stays: what
  comes late, from a writer that does not know yet or a second release, changes nothing.
- CONSUMED means that all readers have left. The producer of a pipelined partition may still write, into the void,
  until it closes; then the partition is released. One reader that leaves early must not break the producer.
- A blocking partition is read when it is FINISHED, and as often as anybody likes: CONSUMED says that each of its
  subpartitions was given out at least once, takes nothing away, and is left only by one of the ends.

`docs/partition-lifecycle.md` shows the table; a test keeps it current.
"""

from __future__ import annotations

from enum import Enum

from penstock.lifecycle.table import Lifecycle


class PartitionState(Enum):
    """The states of a partition's life."""

    REGISTERED = "registered"
    WRITING = "writing"
    FINISHED = "finished"
    CONSUMED = "consumed"
    RELEASED = "released"
    EXPIRED = "expired"
    LOST = "lost"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        """True if the data is gone and only the answer is left."""
        return self in ENDS


class PartitionEvent(Enum):
    """The events of a partition."""

    WRITE = "write"
    FINISH = "finish"
    CONSUME = "consume"
    RELEASE = "release"
    EXPIRE = "expire"
    LOSE = "lose"
    FAIL = "fail"


ENDING = {
    PartitionEvent.RELEASE: PartitionState.RELEASED,
    PartitionEvent.EXPIRE: PartitionState.EXPIRED,
    PartitionEvent.LOSE: PartitionState.LOST,
    PartitionEvent.FAIL: PartitionState.FAILED,
}
"""The four events that end a partition."""

ENDS = frozenset(ENDING.values())
"""The data is gone, and only the answer is left."""

TABLE: dict[tuple[PartitionState, PartitionEvent], PartitionState] = {
    (PartitionState.REGISTERED, PartitionEvent.WRITE): PartitionState.WRITING,
    (PartitionState.REGISTERED, PartitionEvent.FINISH): PartitionState.FINISHED,
    (PartitionState.REGISTERED, PartitionEvent.CONSUME): PartitionState.CONSUMED,
    (PartitionState.WRITING, PartitionEvent.WRITE): PartitionState.WRITING,
    (PartitionState.WRITING, PartitionEvent.FINISH): PartitionState.FINISHED,
    (PartitionState.WRITING, PartitionEvent.CONSUME): PartitionState.CONSUMED,
    (PartitionState.FINISHED, PartitionEvent.CONSUME): PartitionState.CONSUMED,
    (PartitionState.CONSUMED, PartitionEvent.WRITE): PartitionState.CONSUMED,
    (PartitionState.CONSUMED, PartitionEvent.FINISH): PartitionState.CONSUMED,
    (PartitionState.CONSUMED, PartitionEvent.CONSUME): PartitionState.CONSUMED,
    **{
        (state, event): end
        for state in PartitionState
        if state not in ENDS
        for event, end in ENDING.items()
    },
    **{(state, event): state for state in ENDS for event in PartitionEvent},
}  # fmt: skip
"""Every legal transition."""


class PartitionLifecycle(Lifecycle[PartitionState, PartitionEvent]):
    """The state of one partition, and its last events."""

    __slots__ = ()

    def __init__(self, name: object) -> None:
        super().__init__(f"partition {name}", TABLE, PartitionState.REGISTERED)
