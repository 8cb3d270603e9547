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

from collections import deque
from enum import Enum

from penstock.shuffle.errors import ProtocolError


class PartitionState(Enum):
    """Where a partition is in its life."""

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
        """Whether the data is gone and only the answer is left."""
        return self in ENDS


class PartitionEvent(Enum):
    """What can happen to a partition."""

    WRITE = "write"
    FINISH = "finish"
    CONSUME = "consume"
    RELEASE = "release"
    EXPIRE = "expire"
    LOSE = "lose"
    FAIL = "fail"


class IllegalPartitionEventError(ProtocolError):
    """An event that has no place in the partition's state: whoever sent it does not keep to the protocol."""


ENDS = frozenset({PartitionState.RELEASED, PartitionState.EXPIRED, PartitionState.LOST, PartitionState.FAILED})

_ENDING = {
    PartitionEvent.RELEASE: PartitionState.RELEASED,
    PartitionEvent.EXPIRE: PartitionState.EXPIRED,
    PartitionEvent.LOSE: PartitionState.LOST,
    PartitionEvent.FAIL: PartitionState.FAILED,
}

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
        for event, end in _ENDING.items()
    },
    **{(state, event): state for state in ENDS for event in PartitionEvent},
}  # fmt: skip
"""Every legal transition."""

HISTORY = 8
"""Events that an illegal one is reported with."""


class PartitionLifecycle:
    """The state of one partition, and its last events."""

    __slots__ = ("_history", "_name", "_state")

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = PartitionState.REGISTERED
        self._history: deque[PartitionEvent] = deque(maxlen=HISTORY)

    @property
    def state(self) -> PartitionState:
        """The current state."""
        return self._state

    @property
    def history(self) -> tuple[PartitionEvent, ...]:
        """The last events, oldest first; repetitions count once."""
        return tuple(self._history)

    def apply(self, event: PartitionEvent) -> PartitionState:
        """The state after an event; IllegalPartitionEventError, and no change, when it has no place here."""
        after = TABLE.get((self._state, event))
        if after is None:
            last = ", ".join(past.value for past in self._history) or "none"
            raise IllegalPartitionEventError(
                f"partition {self._name}: {event.value!r} is not possible when {self._state.value} (last events: "
                f"{last})"
            )
        if not self._history or self._history[-1] is not event:
            self._history.append(event)
        self._state = after
        return after


def as_markdown() -> str:
    """The table, one row per state and one column per event; an empty cell is illegal."""
    events = list(PartitionEvent)
    lines = [
        "| state | " + " | ".join(event.value for event in events) + " |",
        "|---" * (len(events) + 1) + "|",
    ]
    for state in PartitionState:
        cells = [after.value if (after := TABLE.get((state, event))) else "" for event in events]
        lines.append(f"| **{state.value}** | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
