# SPDX-License-Identifier: Apache-2.0
"""The pipelined subpartition: a queue of slices and events between one producer and one reader.

Rules:

- Everything queued can be read: the producer ships only what it has committed, so there is no unfinished buffer here.
- One view, once. When its reader leaves, the subpartition is consumed, and what is added later is dropped.
- Slices that will not be read are handed back to be recycled, once each: by `release` and `fail` to their caller, by
  a view's `release` to the partition.
- The listener is called when the view turns from not worth polling to worth it, when a priority event overtakes
  data (a reader without credit could not take the data, but can take the event), and on a failure; always as the last
  step, so it may call back. It is not called by `create_view`: look at `is_available` then.
- An aligned barrier blocks the view behind it until `resume`.
- An overtaking barrier goes ahead of all data that is queued, except the rest of a message that is being read.

Sans-I/O, one thread. Not here: reference counts, and when a partition may be released.
"""

from __future__ import annotations

import itertools
from collections import deque
from enum import Enum
from typing import Final, Protocol

from penstock.buffer import BufferSlice, DataType
from penstock.buffer.view import BufferOrEvent, DataListener
from penstock.errors import PartitionError, ProtocolError
from penstock.lifecycle.table import Lifecycle, Table
from penstock.partition.answers import end_error
from penstock.partition.lifecycle import PartitionState


class SubpartitionState(Enum):
    """OPEN takes data, FINISHED only gives it; a barrier holds both back from their reader. The others do neither.

    A detached one has no reader, and may get another one.
    """

    OPEN = "open"
    OPEN_HELD = "open, held"
    FINISHED = "finished"
    FINISHED_HELD = "finished, held"
    DETACHED = "detached"
    DETACHED_FINISHED = "detached, finished"
    CONSUMED = "consumed"
    RELEASED = "released"
    FAILED = "failed"


class SubpartitionEvent(Enum):
    """The events of a subpartition: by its producer, its reader, the end of its partition."""

    FINISH = "finish"
    HOLD = "hold"
    RESUME = "resume"
    LEAVE = "leave"
    DETACH = "detach"
    ATTACH = "attach"
    RELEASE = "release"
    FAIL = "fail"


_TAKING = (SubpartitionState.OPEN, SubpartitionState.OPEN_HELD)
_COMPLETE = (
    SubpartitionState.FINISHED,
    SubpartitionState.FINISHED_HELD,
    SubpartitionState.DETACHED_FINISHED,
)
_HELD = (SubpartitionState.OPEN_HELD, SubpartitionState.FINISHED_HELD)
_READ = (*_TAKING, SubpartitionState.FINISHED, SubpartitionState.FINISHED_HELD)
DETACHED = (SubpartitionState.DETACHED, SubpartitionState.DETACHED_FINISHED)
"""Its reader has left, and another one may come."""
_LIVE = (*_READ, *DETACHED)

TABLE: Final[Table[SubpartitionState, SubpartitionEvent]] = {
    (SubpartitionState.OPEN, SubpartitionEvent.FINISH): SubpartitionState.FINISHED,
    (SubpartitionState.OPEN_HELD, SubpartitionEvent.FINISH): SubpartitionState.FINISHED_HELD,
    (SubpartitionState.FINISHED, SubpartitionEvent.FINISH): SubpartitionState.FINISHED,
    (SubpartitionState.FINISHED_HELD, SubpartitionEvent.FINISH): SubpartitionState.FINISHED_HELD,
    (SubpartitionState.OPEN, SubpartitionEvent.HOLD): SubpartitionState.OPEN_HELD,
    (SubpartitionState.FINISHED, SubpartitionEvent.HOLD): SubpartitionState.FINISHED_HELD,
    (SubpartitionState.OPEN_HELD, SubpartitionEvent.RESUME): SubpartitionState.OPEN,
    (SubpartitionState.FINISHED_HELD, SubpartitionEvent.RESUME): SubpartitionState.FINISHED,
    **{(state, SubpartitionEvent.LEAVE): SubpartitionState.CONSUMED for state in _READ},
    **{(state, SubpartitionEvent.DETACH): SubpartitionState.DETACHED for state in _TAKING},
    (SubpartitionState.FINISHED, SubpartitionEvent.DETACH): SubpartitionState.DETACHED_FINISHED,
    (SubpartitionState.FINISHED_HELD, SubpartitionEvent.DETACH): SubpartitionState.DETACHED_FINISHED,
    (SubpartitionState.DETACHED, SubpartitionEvent.ATTACH): SubpartitionState.OPEN,
    (SubpartitionState.DETACHED_FINISHED, SubpartitionEvent.ATTACH): SubpartitionState.FINISHED,
    (SubpartitionState.DETACHED, SubpartitionEvent.FINISH): SubpartitionState.DETACHED_FINISHED,
    (SubpartitionState.DETACHED_FINISHED, SubpartitionEvent.FINISH): SubpartitionState.DETACHED_FINISHED,
    **{(state, SubpartitionEvent.RELEASE): SubpartitionState.RELEASED for state in _LIVE},
    **{(state, SubpartitionEvent.FAIL): SubpartitionState.FAILED for state in _LIVE},
    **{(state, event): state for state in SubpartitionState if state not in _LIVE for event in SubpartitionEvent},
}
"""Every legal step; nothing leads out of the three ends, and callers need not ask before."""


class SubpartitionParent(Protocol):
    """The partition, as its subpartitions see it."""

    @property
    def name(self) -> str:
        """The partition's name in messages."""

    @property
    def host(self) -> str:
        """The host it is on, for messages."""

    def on_consumed(self, buffers: list[BufferSlice]) -> None:
        """The reader has left; the buffers are to be recycled."""


class PipelinedSubpartition:
    """One subpartition. The producer's side adds, the reader's side is its view."""

    __slots__ = (
        "_failure", "_lifecycle", "_parent", "_priority", "_queue", "_queued_buffers", "_view", "index",
    )  # fmt: skip

    def __init__(self, index: int, parent: SubpartitionParent) -> None:
        self.index = index
        self._parent = parent
        self._lifecycle = Lifecycle(f"{parent.name}[{index}]", TABLE, SubpartitionState.OPEN)
        self._queue: deque[BufferOrEvent] = deque()
        self._priority = 0  # priority events at the head of the queue
        self._queued_buffers = 0
        self._failure: PartitionError | None = None
        self._view: PipelinedView | None = None

    @property
    def name(self) -> str:
        """The name in messages."""
        return self._lifecycle.name

    @property
    def state(self) -> SubpartitionState:
        """The state of its life."""
        return self._lifecycle.state

    @property
    def _is_held(self) -> bool:
        return self._lifecycle.state in _HELD

    @property
    def is_ended(self) -> bool:
        """True if it will not be read any more."""
        return self._lifecycle.state not in _LIVE

    @property
    def backlog(self) -> int:
        """Data buffers that wait and may be read; 0 while a barrier holds them."""
        return 0 if self._is_held else self._queued_buffers

    @property
    def next_is_event(self) -> bool:
        """True if the next thing to be read is an event."""
        return bool(self._queue) and not self._is_held and not self._queue[0].is_buffer

    @property
    def is_consumable(self) -> bool:
        """True if something can be read."""
        return bool(self._queue) and not self._is_held

    @property
    def failure(self) -> PartitionError | None:
        """Why nothing more will come, where that is not the reader's doing."""
        return self._failure

    def add(self, buffer: BufferSlice) -> bool:
        """Queue a slice. False when it will not be read: then it is the caller's to recycle."""
        if not self._takes(buffer.length > 0):
            return False
        self._queued_buffers += 1
        self._append(BufferOrEvent(DataType.DATA, buffer, self.index))
        return True

    def add_event(self, payload: bytes, data_type: int) -> bool:
        """Queue an event after the data, or before it when it has priority. False when it will not be read."""
        if not self._takes(data_type != DataType.DATA):
            return False
        item = BufferOrEvent(data_type, payload, self.index)
        if data_type != DataType.PRIORITY_EVENT:
            self._append(item)
            return True
        overtakes_data = not self._queue or self._queue[0].is_buffer
        self._queue.insert(self._priority, item)
        self._priority += 1
        if overtakes_data and not self._is_held:
            self._notify()
        return True

    def overtake(self, payload: bytes) -> list[BufferSlice]:
        """Queue a barrier ahead of the data; returns the slices that it overtook, which stay queued behind it."""
        if not self._takes(True):
            return []
        place = self._priority
        while place < len(self._queue) and not _begins_message(self._queue[place]):
            place += 1
        if place == self._priority:
            self._priority += 1
        self._queue.insert(place, BufferOrEvent(DataType.OVERTAKING_BARRIER, payload, self.index))
        if not self._is_held:
            self._notify()
        behind = itertools.islice(self._queue, place + 1, None)
        return [item.payload for item in behind if isinstance(item.payload, BufferSlice)]

    def _takes(self, well_formed: bool) -> bool:
        if not well_formed:
            raise ProtocolError(f"{self.name}: an empty buffer, or an event that claims to be data")
        state = self._lifecycle.state
        if state in _COMPLETE:
            raise ProtocolError(f"{self.name}: its producer writes after it has finished")
        return state in _TAKING

    def _append(self, item: BufferOrEvent) -> None:
        was_empty = not self._queue
        self._queue.append(item)
        if was_empty and not self._is_held:
            self._notify()

    def finish(self) -> None:
        """The producer adds no more. Its reader learns that from the last event, so the listener is not called."""
        self._lifecycle.move(SubpartitionEvent.FINISH)

    def create_view(self, listener: DataListener) -> PipelinedView:
        """The one view; PartitionError says why there is none to be had."""
        if self._failure is not None:
            raise self._failure
        if self._view is not None:
            if self.state in _LIVE:
                raise PartitionError(f"{self.name} has a reader already: pipelined data is read once")
            raise end_error(self.name, PartitionState.RELEASED, "its reader has left", self._parent.host)
        self._view = PipelinedView(self, listener)
        return self._view

    def poll(self) -> BufferOrEvent | None:
        """The next thing for the reader."""
        if not self._queue or self._is_held:
            return None
        item = self._queue.popleft()
        if self._priority:
            self._priority -= 1
        if isinstance(item.payload, BufferSlice):
            self._queued_buffers -= 1
        elif item.data_type == DataType.ALIGNED_BARRIER:
            self._lifecycle.move(SubpartitionEvent.HOLD)
        return item

    def resume(self) -> None:
        """Go on after the barrier."""
        if self.state not in _LIVE:
            return
        if not self._is_held:
            raise ProtocolError(f"{self.name} is resumed, but nothing blocks it")
        self._lifecycle.move(SubpartitionEvent.RESUME)
        if self._queue:
            self._notify()

    def consume(self) -> None:
        """The reader has left; called by its view."""
        if self.state in _LIVE:
            self._lifecycle.move(SubpartitionEvent.LEAVE)
            self._parent.on_consumed(self._drain())

    def release(self, cause: BaseException | str = "") -> list[BufferSlice]:
        """End it and return what has to be recycled; idempotent. A reader is told that it was released."""
        error = end_error(self.name, PartitionState.RELEASED, cause, self._parent.host)
        return self.end(SubpartitionEvent.RELEASE, error)

    def fail(self, cause: BaseException | str) -> list[BufferSlice]:
        """The producer failed: drop what is queued and return it for recycling. A reader is told the cause."""
        return self.end(SubpartitionEvent.FAIL, end_error(self.name, PartitionState.FAILED, cause, self._parent.host))

    def end(self, event: SubpartitionEvent, error: PartitionError) -> list[BufferSlice]:
        """End it with the error that a reader shall get; nothing happens when it has ended before."""
        if self.state not in _LIVE:
            return []
        self._lifecycle.move(event)
        self._failure = error
        buffers = self._drain()
        self._notify()
        return buffers

    def _drain(self) -> list[BufferSlice]:
        buffers = [item.payload for item in self._queue if isinstance(item.payload, BufferSlice)]
        self._queue.clear()
        self._priority = self._queued_buffers = 0
        return buffers

    def _notify(self) -> None:
        if self._view is not None:
            self._view.notify()


def _begins_message(item: BufferOrEvent) -> bool:
    """Tell whether a barrier may stand in front of it, and is not older than one that stands there."""
    if isinstance(item.payload, BufferSlice):
        return not item.payload.continues
    return item.data_type != DataType.OVERTAKING_BARRIER


class PipelinedView:
    """The reading end, for a reader here or elsewhere. Silent and empty once it is released."""

    __slots__ = ("_listener", "_subpartition")

    def __init__(self, subpartition: PipelinedSubpartition, listener: DataListener) -> None:
        self._subpartition = subpartition
        self._listener: DataListener | None = listener

    @property
    def is_released(self) -> bool:
        """True once `release` was called."""
        return self._listener is None

    @property
    def backlog(self) -> int:
        """Data buffers that wait and may be read."""
        return 0 if self.is_released else self._subpartition.backlog

    @property
    def next_is_event(self) -> bool:
        """True if `poll` would give an event."""
        return not self.is_released and self._subpartition.next_is_event

    @property
    def is_available(self) -> bool:
        """True if there is something to poll or a failure to pass on."""
        return not self.is_released and (self._subpartition.is_consumable or self.failure is not None)

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more will come."""
        return self._subpartition.failure

    def poll(self) -> BufferOrEvent | None:
        """The next thing, if there is one."""
        return None if self.is_released else self._subpartition.poll()

    def on_credit(self, buffers: int) -> None:
        """Nothing changes: all that it gives is in memory."""

    def resume(self) -> None:
        """Go on after a blocking event."""
        if not self.is_released:
            self._subpartition.resume()

    def silence(self) -> None:
        """Another reader takes its place: it hears and gives nothing more."""
        self._listener = None

    def notify(self) -> None:
        """Call the listener, if there is one left."""
        if self._listener is not None:
            self._listener()

    def release(self) -> None:
        """The reader is done; idempotent."""
        if self._listener is not None:
            self._listener = None
            self._subpartition.consume()
