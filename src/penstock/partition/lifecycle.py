# SPDX-License-Identifier: Apache-2.0
"""The life of a result partition as a table `(state, event) -> state`.

Rules:

- All transitions are in this file. A missing pair is illegal and raises with the last events of the partition.
- The four ends are different answers to a reader (RELEASED, EXPIRED, LOST, FAILED) and the first one stays: what
  comes late, from a writer that does not know yet or a second release, changes nothing.
- CONSUMED means that all readers have left. The producer of a pipelined partition may still write, into the void,
  until it closes; then the partition is released. One reader that leaves early must not break the producer.
- A blocking partition is read when it is FINISHED, and as often as readers like: CONSUMED says that each of its
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


class ProducerState(Enum):
    """The states of a partition's making: its producer's part, and then the storing of what it has left in memory."""

    SILENT = "silent"
    SHOWN = "shown"
    FINISHED = "finished"
    LEFT = "left"
    ABANDONED = "abandoned"
    SETTLED = "settled"
    STORED = "stored"
    INDEXED = "indexed"

    @property
    def is_finished(self) -> bool:
        """True if everything was written."""
        return self in _WRITTEN

    @property
    def has_left(self) -> bool:
        """True if the producer will not say anything any more."""
        return self in (ProducerState.LEFT, ProducerState.ABANDONED)


class ProducerEvent(Enum):
    """The events of a partition's making."""

    SHOW = "show"
    FINISH = "finish"
    LEAVE = "leave"
    SETTLE = "settle"
    STORE = "store"
    INDEX = "index"


_STORING = (ProducerState.SETTLED, ProducerState.STORED, ProducerState.INDEXED)
_WRITTEN = (ProducerState.FINISHED, ProducerState.LEFT, *_STORING)
_LEFT = (ProducerState.LEFT, ProducerState.ABANDONED, *_STORING)

PRODUCER_TABLE: dict[tuple[ProducerState, ProducerEvent], ProducerState] = {
    (ProducerState.SILENT, ProducerEvent.SHOW): ProducerState.SHOWN,
    (ProducerState.SILENT, ProducerEvent.FINISH): ProducerState.FINISHED,
    (ProducerState.SILENT, ProducerEvent.LEAVE): ProducerState.ABANDONED,
    (ProducerState.SHOWN, ProducerEvent.FINISH): ProducerState.FINISHED,
    (ProducerState.SHOWN, ProducerEvent.LEAVE): ProducerState.ABANDONED,
    (ProducerState.FINISHED, ProducerEvent.LEAVE): ProducerState.LEFT,
    (ProducerState.FINISHED, ProducerEvent.SETTLE): ProducerState.SETTLED,
    (ProducerState.FINISHED, ProducerEvent.STORE): ProducerState.STORED,
    (ProducerState.LEFT, ProducerEvent.SETTLE): ProducerState.SETTLED,
    (ProducerState.LEFT, ProducerEvent.STORE): ProducerState.STORED,
    (ProducerState.SETTLED, ProducerEvent.STORE): ProducerState.STORED,
    (ProducerState.STORED, ProducerEvent.INDEX): ProducerState.INDEXED,
    **{(state, ProducerEvent.FINISH): state for state in (*_WRITTEN, ProducerState.ABANDONED)},
    **{(state, ProducerEvent.LEAVE): state for state in _LEFT},
    **{(state, ProducerEvent.SETTLE): state for state in _STORING},
}  # fmt: skip
"""Every legal step. A word that is said again, or to a partition that has ended meanwhile, changes nothing."""


class ProducerLifecycle(Lifecycle[ProducerState, ProducerEvent]):
    """The making of one partition."""

    __slots__ = ()

    def __init__(self, name: object) -> None:
        super().__init__(f"the making of partition {name}", PRODUCER_TABLE, ProducerState.SILENT)
