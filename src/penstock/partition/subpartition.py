# SPDX-License-Identifier: Apache-2.0
"""The pipelined subpartition: a queue of slices and events between one producer and one reader.

Rules:

- Everything queued can be read: the producer ships only what it has committed, so there is no unfinished buffer here.
- One view, once. When its reader leaves, the subpartition is consumed, and what is added later is dropped.
- Slices that nobody will read are handed back to be recycled, once each: by `release` and `fail` to their caller, by
  a view's `release` to the partition.
- The listener is called when the view turns from not worth polling to worth it, when a priority event overtakes
  data (a reader without credit could not take the data, but can take the event), and on a failure; always as the last
  step, so it may call back. It is not called by `create_view`: look at `is_available` then.
- An aligned barrier blocks the view behind it until `resume`.

Sans-I/O, one thread. Not here: reference counts, and when a partition may be released.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from penstock.buffer import BufferSlice, DataType
from penstock.partition.answers import end_error
from penstock.partition.lifecycle import PartitionState
from penstock.partition.view import BufferOrEvent, DataListener
from penstock.shuffle.errors import PartitionError, ProtocolError


class SubpartitionState(Enum):
    """OPEN takes data, FINISHED only gives it; the others do neither."""

    OPEN = "open"
    FINISHED = "finished"
    CONSUMED = "consumed"
    RELEASED = "released"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SubpartitionStatistics:
    """A snapshot. `buffers`, `bytes` and `events` were added in all; `queued_*` are waiting now."""

    state: SubpartitionState
    buffers: int
    bytes: int
    events: int
    queued_buffers: int
    queued_bytes: int
    queued_events: int
    polled: int
    acknowledged: int
    is_blocked: bool
    has_view: bool
    buffer_size: int | None


class SubpartitionParent(Protocol):
    """The partition, as its subpartitions see it."""

    @property
    def name(self) -> str:
        """The partition's name in messages."""

    @property
    def host(self) -> str:
        """Where it is, for messages."""

    def on_consumed(self, buffers: list[BufferSlice]) -> None:
        """The reader has left; the buffers are to be recycled."""

    def on_task_event(self, subpartition: int, payload: bytes) -> None:
        """An event from the reader to the producer."""

    def on_acknowledged(self) -> None:
        """The reader has acknowledged more than before."""


_LIVE = (SubpartitionState.OPEN, SubpartitionState.FINISHED)


class PipelinedSubpartition:
    """One subpartition. The producer's side adds, the reader's side is its view."""

    __slots__ = (
        "_acknowledged", "_blocked", "_buffers", "_bytes", "_events", "_failure", "_parent", "_polled", "_priority",
        "_queue", "_queued_buffers", "_queued_bytes", "_state", "_view", "buffer_size", "index",
    )  # fmt: skip

    def __init__(self, index: int, parent: SubpartitionParent) -> None:
        self.index = index
        self.buffer_size: int | None = None
        self._parent = parent
        self._state = SubpartitionState.OPEN
        self._queue: deque[BufferOrEvent] = deque()
        self._priority = 0  # priority events at the head of the queue
        self._queued_buffers = self._queued_bytes = 0
        self._buffers = self._bytes = self._events = 0
        self._polled = 0
        self._acknowledged = -1
        self._blocked = False
        self._failure: PartitionError | None = None
        self._view: PipelinedView | None = None

    @property
    def state(self) -> SubpartitionState:
        """Where it is in its life."""
        return self._state

    @property
    def backlog(self) -> int:
        """Data buffers that wait and may be read; 0 while blocked."""
        return 0 if self._blocked else self._queued_buffers

    @property
    def next_is_event(self) -> bool:
        """Whether the next thing to be read is an event."""
        return bool(self._queue) and not self._blocked and not self._queue[0].is_buffer

    @property
    def is_consumable(self) -> bool:
        """Whether something can be read."""
        return bool(self._queue) and not self._blocked

    @property
    def failure(self) -> PartitionError | None:
        """Why nothing more will come, where that is not the reader's doing."""
        return self._failure

    @property
    def is_fully_acknowledged(self) -> bool:
        """Whether the producer has finished and the reader has acknowledged all of it."""
        ended = self._state in (SubpartitionState.FINISHED, SubpartitionState.CONSUMED)
        return ended and not self._queue and self._acknowledged == self._polled - 1

    def add(self, buffer: BufferSlice) -> bool:
        """Queue a slice. False when nobody will read it: then it is the caller's to recycle."""
        if not self._takes(buffer.length > 0):
            return False
        self._buffers += 1
        self._bytes += buffer.length
        self._queued_buffers += 1
        self._queued_bytes += buffer.length
        self._append(BufferOrEvent(DataType.DATA, buffer, self.index))
        return True

    def add_event(self, payload: bytes, data_type: int) -> bool:
        """Queue an event behind the data, or before it when it has priority. False when nobody will read it."""
        if not self._takes(data_type != DataType.DATA):
            return False
        self._events += 1
        item = BufferOrEvent(data_type, payload, self.index)
        if data_type != DataType.PRIORITY_EVENT:
            self._append(item)
            return True
        overtakes_data = not self._queue or self._queue[0].is_buffer
        self._queue.insert(self._priority, item)
        self._priority += 1
        if overtakes_data and not self._blocked:
            self._notify()
        return True

    def _takes(self, well_formed: bool) -> bool:
        if not well_formed:
            raise ProtocolError(f"{self._name()}: an empty buffer, or an event that claims to be data")
        if self._state is SubpartitionState.FINISHED:
            raise ProtocolError(f"{self._name()}: its producer writes after it has finished")
        return self._state is SubpartitionState.OPEN

    def _append(self, item: BufferOrEvent) -> None:
        was_empty = not self._queue
        self._queue.append(item)
        if was_empty and not self._blocked:
            self._notify()

    def finish(self) -> None:
        """The producer adds no more. Its reader learns that from the last event, so nobody is notified."""
        if self._state is SubpartitionState.OPEN:
            self._state = SubpartitionState.FINISHED

    def create_view(self, listener: DataListener) -> PipelinedView:
        """The one view; PartitionError says why there is none to be had."""
        if self._failure is not None:
            raise self._failure
        if self._view is not None:
            if self._state in _LIVE:
                raise PartitionError(f"{self._name()} has a reader already: pipelined data is read once")
            raise end_error(self._name(), PartitionState.RELEASED, "its reader has left", self._parent.host)
        self._view = PipelinedView(self, listener)
        return self._view

    def poll(self) -> BufferOrEvent | None:
        """The next thing for the reader."""
        if self._blocked or not self._queue:
            return None
        item = self._queue.popleft()
        self._polled += 1
        if self._priority:
            self._priority -= 1
        if isinstance(item.payload, BufferSlice):
            self._queued_buffers -= 1
            self._queued_bytes -= item.payload.length
        elif item.data_type == DataType.ALIGNED_BARRIER:
            self._blocked = True
        return item

    def resume(self) -> None:
        """Go on behind the barrier."""
        if self._state not in _LIVE:
            return
        if not self._blocked:
            raise ProtocolError(f"{self._name()} is resumed, but nothing blocks it")
        self._blocked = False
        if self._queue:
            self._notify()

    def acknowledge(self, last_seq: int) -> None:
        """The reader has processed everything up to `last_seq`; going back is ignored."""
        if last_seq >= self._polled or last_seq < -1:
            raise ProtocolError(
                f"{self._name()}: {last_seq} is acknowledged, but only {self._polled} things were sent"
            )
        if last_seq > self._acknowledged:
            self._acknowledged = last_seq
            self._parent.on_acknowledged()

    def on_task_event(self, payload: bytes) -> None:
        """Pass the reader's event on to the producer, unless that one is gone."""
        if self._state in _LIVE:
            self._parent.on_task_event(self.index, payload)

    def consume(self) -> None:
        """The reader has left; called by its view."""
        if self._state in _LIVE:
            self._state = SubpartitionState.CONSUMED
            self._parent.on_consumed(self._drain())

    def release(self, cause: BaseException | str = "") -> list[BufferSlice]:
        """End it and return what has to be recycled; idempotent. A reader is told that it was released."""
        error = end_error(self._name(), PartitionState.RELEASED, cause, self._parent.host)
        return self.end(SubpartitionState.RELEASED, error)

    def fail(self, cause: BaseException | str) -> list[BufferSlice]:
        """The producer failed: drop what is queued and return it for recycling. A reader is told the cause."""
        return self.end(
            SubpartitionState.FAILED, end_error(self._name(), PartitionState.FAILED, cause, self._parent.host)
        )

    def end(self, state: SubpartitionState, error: PartitionError) -> list[BufferSlice]:
        """End it with the error that a reader shall get; nothing happens when it has ended before."""
        if self._state not in _LIVE:
            return []
        self._state = state
        self._failure = error
        buffers = self._drain()
        self._notify()
        return buffers

    def _drain(self) -> list[BufferSlice]:
        buffers = [item.payload for item in self._queue if isinstance(item.payload, BufferSlice)]
        self._queue.clear()
        self._priority = self._queued_buffers = self._queued_bytes = 0
        self._blocked = False
        return buffers

    def _notify(self) -> None:
        if self._view is not None:
            self._view.notify()

    def _name(self) -> str:
        return f"{self._parent.name}[{self.index}]"

    def statistics(self) -> SubpartitionStatistics:
        """A snapshot."""
        return SubpartitionStatistics(
            state=self._state,
            buffers=self._buffers,
            bytes=self._bytes,
            events=self._events,
            queued_buffers=self._queued_buffers,
            queued_bytes=self._queued_bytes,
            queued_events=len(self._queue) - self._queued_buffers,
            polled=self._polled,
            acknowledged=self._acknowledged,
            is_blocked=self._blocked,
            has_view=self._view is not None,
            buffer_size=self.buffer_size,
        )


class PipelinedView:
    """The reading end: a `SubpartitionView`. Silent and empty once it is released."""

    __slots__ = ("_listener", "_subpartition")

    def __init__(self, subpartition: PipelinedSubpartition, listener: DataListener) -> None:
        self._subpartition = subpartition
        self._listener: DataListener | None = listener

    @property
    def is_released(self) -> bool:
        """Whether `release` was called."""
        return self._listener is None

    @property
    def backlog(self) -> int:
        """Data buffers that wait and may be read."""
        return 0 if self.is_released else self._subpartition.backlog

    @property
    def next_is_event(self) -> bool:
        """Whether `poll` would give an event."""
        return not self.is_released and self._subpartition.next_is_event

    @property
    def is_available(self) -> bool:
        """Whether there is something to poll or a failure to pass on."""
        return not self.is_released and (self._subpartition.is_consumable or self.failure is not None)

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more will come."""
        return self._subpartition.failure

    def poll(self) -> BufferOrEvent | None:
        """The next thing, if there is one."""
        return None if self.is_released else self._subpartition.poll()

    def on_credit(self, buffers: int) -> None:
        """Ignore: what is queued is in memory already."""

    def resume(self) -> None:
        """Go on behind a blocking event."""
        if not self.is_released:
            self._subpartition.resume()

    def on_task_event(self, payload: bytes) -> None:
        """An event for the producer."""
        if not self.is_released:
            self._subpartition.on_task_event(payload)

    def new_buffer_size(self, size: int) -> None:
        """The reader wants buffers of this size."""
        if size < 1:
            raise ProtocolError(f"a reader asks for buffers of {size} bytes")
        self._subpartition.buffer_size = size

    def acknowledge(self, last_seq: int) -> None:
        """The reader has processed everything up to here. Counts even after the view was released."""
        self._subpartition.acknowledge(last_seq)

    def notify(self) -> None:
        """Call the listener, if there is one left."""
        if self._listener is not None:
            self._listener()

    def release(self) -> None:
        """The reader is done; idempotent."""
        if self._listener is not None:
            self._listener = None
            self._subpartition.consume()
