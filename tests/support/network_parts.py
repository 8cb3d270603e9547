# SPDX-License-Identifier: Apache-2.0
"""Parts for the network tests: real views over a queue, a real pool of segments, a sink that keeps what it gets."""

from __future__ import annotations

import asyncio
import functools
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import uvloop

from holdings import open_descriptors
from penstock.buffer.data_types import DataType
from penstock.buffer.view import BufferOrEvent
from penstock.connection.certificate import Certificate
from penstock.connection.certificates import new_certificate
from penstock.errors import PartitionNotProducedError
from penstock.network.flow import CREDIT, FlowControl, ReceiverBuffers
from penstock.network.receiver import RemoteInputChannel
from penstock.network.uncredited import WaterLevel
from penstock.network.views import Outgoing
from penstock.shuffle import DatasetId
from penstock.shuffle.ids import PartitionId
from penstock.testing import DEADLINE, eventually

# libuv opens a pipe for signals with the first loop of a process and keeps it: not a test's leak.
uvloop.new_event_loop().close()

SECRET = b"a secret of the application....."
SEGMENT = 32 << 10


@functools.cache
def certificate() -> Certificate:
    """One for all tests of a process."""
    return new_certificate("penstock tests")


class Pool:
    """The floating segments of a gate; every segment is in exactly one place, which `lent` and `free` show."""

    def __init__(self, segments: Sequence[int]) -> None:
        self.free = list(segments)
        self.lent: set[int] = set()
        self.exclusive_back: list[int] = []
        self.listeners: deque[Callable[[int | None], bool]] = deque()

    def request_floating(self) -> int | None:
        """A free segment."""
        if not self.free:
            return None
        segment = self.free.pop()
        self.lent.add(segment)
        return segment

    def return_floating(self, segment: int) -> None:
        """A segment comes back; waiting listeners come first."""
        self.lent.remove(segment)
        for _ in range(len(self.listeners)):
            self.lent.add(segment)
            if self.listeners.popleft()(segment):
                return
            self.lent.remove(segment)
        self.free.append(segment)

    def return_exclusive(self, segment: int) -> None:
        """An exclusive segment comes home."""
        assert segment not in self.exclusive_back
        self.exclusive_back.append(segment)

    def add_listener(self, listener: Callable[[int | None], bool]) -> bool:
        """Wait for a segment."""
        if self.free:
            return False
        self.listeners.append(listener)
        return True


class QueueView:
    """A pipelined subpartition view over a queue."""

    def __init__(self, subpartition: int = 0) -> None:
        self.subpartition = subpartition
        self.queue: deque[tuple[int, bytes]] = deque()
        self.listener: Callable[[], None] = lambda: None
        self.failure: BaseException | None = None
        self.is_blocked = self.is_released = False
        self.polled = self.recycled = self.resumed = 0
        self.granted = 0

    @property
    def backlog(self) -> int:
        """Data buffers that wait."""
        return 0 if self.is_blocked else sum(kind == DataType.DATA for kind, _ in self.queue)

    @property
    def is_available(self) -> bool:
        """True if `poll` gives something."""
        return bool(self.queue) and not self.is_blocked

    @property
    def next_is_event(self) -> bool:
        """True if an event is next."""
        return bool(self.queue) and self.queue[0][0] != DataType.DATA

    @property
    def outstanding(self) -> int:
        """Buffers polled and not recycled."""
        return self.polled - self.recycled

    def push(self, kind: int, payload: bytes) -> None:
        """Queue one thing."""
        self.queue.append((kind, payload))
        self.listener()

    def data(self, *payloads: bytes) -> QueueView:
        """Queue data buffers."""
        for payload in payloads:
            self.push(DataType.DATA, payload)
        return self

    def event(self, payload: bytes, kind: int = DataType.EVENT) -> QueueView:
        """Queue an event."""
        self.push(kind, payload)
        return self

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self.failure = error
        self.listener()

    def poll(self) -> BufferOrEvent | None:
        """Take one thing."""
        if not self.is_available:
            return None
        kind, payload = self.queue.popleft()
        self.is_blocked = kind == DataType.ALIGNED_BARRIER
        if kind != DataType.DATA:
            return BufferOrEvent(kind, payload, self.subpartition)
        self.polled += 1
        return BufferOrEvent(kind, payload, self.subpartition, self._recycle)

    def _recycle(self) -> None:
        self.recycled += 1
        assert self.recycled <= self.polled

    def on_credit(self, buffers: int) -> None:
        """Count what was granted."""
        self.granted += buffers

    def resume(self) -> None:
        """Go on after a barrier."""
        assert self.is_blocked
        self.is_blocked = False
        self.resumed += 1

    def release(self) -> None:
        """Released, once."""
        assert not self.is_released
        self.is_released = True
        self.listener = lambda: None


class Provider:
    """Partitions by id: views, errors, or nothing yet."""

    def __init__(self) -> None:
        self.views: dict[tuple[PartitionId, int], QueueView] = {}
        self.errors: dict[PartitionId, Exception] = {}
        self.waiting: dict[PartitionId, list[Callable[[], None]]] = {}
        self.requests: list[tuple[PartitionId, int, int]] = []

    def register(self, partition: PartitionId, view: QueueView | None = None, subpartition: int = 0) -> QueueView:
        """A partition is produced; who waited is told."""
        view = view or QueueView(subpartition)
        self.views[partition, subpartition] = view
        for listener in self.waiting.pop(partition, []):
            listener()
        return view

    def request_view(self, partition: PartitionId, first: int, last: int, listener: Callable[[], None]) -> QueueView:
        """The view, or the error, or not yet."""
        self.requests.append((partition, first, last))
        if partition in self.errors:
            raise self.errors[partition]
        view = self.views.get((partition, first))
        if view is None:
            self.waiting.setdefault(partition, []).append(listener)
            raise PartitionNotProducedError(f"{partition} is not here yet")
        view.listener = listener
        return view

    def outgoing(self, item: BufferOrEvent) -> Outgoing:
        """Data as memory."""
        assert isinstance(item.payload, bytes)
        payload = memoryview(item.payload) if item.is_buffer else item.payload
        return Outgoing(payload, item.recycle)


class RecordingSink:
    """Keeps what a channel delivers; recycles at once unless told to hold."""

    def __init__(self, credit: ReceiverBuffers, memory: memoryview, *, hold: bool = False) -> None:
        self.credit = credit
        self.memory = memory
        self.hold = hold
        self.channel: RemoteInputChannel | None = None
        self.held: list[int] = []
        self.data: list[bytes] = []
        self.events: list[tuple[int, bytes]] = []
        self.backlogs: list[int] = []
        self.errors: list[BaseException] = []

    def take_buffer(self, length: int) -> tuple[int, memoryview] | None:
        """A segment of the channel."""
        segment = self.credit.take()
        return segment, self.memory[segment * SEGMENT : (segment + 1) * SEGMENT]

    def on_buffer(self, segment: int, length: int, backlog: int) -> None:
        """Copy the data out."""
        self.data.append(bytes(self.memory[segment * SEGMENT : segment * SEGMENT + length]))
        self.backlogs.append(backlog)
        self.held.append(segment)
        if not self.hold:
            self.recycle_all()

    def on_event(self, data_type: int, payload: bytes) -> None:
        """Keep the event."""
        self.events.append((data_type, payload))

    def on_error(self, error: BaseException) -> None:
        """Keep the error."""
        self.errors.append(error)

    def recycle_all(self) -> None:
        """Give back what is held."""
        held, self.held = self.held, []
        for segment in held:
            self.credit.recycle(segment)


class Gate:
    """The receiving half of a task: a pool, memory, and sinks whose exclusive segments come out of it."""

    def __init__(self, floating: int = 4, channels: int = 16, exclusive: int = 2, flow: FlowControl = CREDIT) -> None:
        self.exclusive = exclusive
        self.flow = flow
        self.flags: list[bool] = []
        self.level: WaterLevel = flow.level(floating, self.flags.append)
        count = floating + channels * exclusive
        self.memory = memoryview(bytearray(count * SEGMENT))
        self.pool = Pool(range(floating))
        self.unused = list(range(floating, count))

    def sink(self, exclusive: int | None = None, *, hold: bool = False) -> RecordingSink:
        """A sink with its own exclusive segments."""
        count = self.exclusive if exclusive is None else exclusive
        own, self.unused = self.unused[:count], self.unused[count:]
        return RecordingSink(self.flow.receiver(own, self.pool, self.level), self.memory, hold=hold)


def partition(index: int = 0, attempt: int = 7) -> PartitionId:
    """A partition of the test job."""
    return PartitionId(DatasetId("job", 0), index, attempt)


async def wait_until(holds: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds; fails at the deadline with the condition's line."""
    await eventually(holds, f"the condition at line {holds.__code__.co_firstlineno}")


def run(main: Callable[[], Awaitable[None]], loop: str = "asyncio") -> None:
    """Run a test's coroutine; afterwards no task and no file descriptor may be left."""
    before = open_descriptors()

    async def guarded() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        await asyncio.wait_for(main(), DEADLINE)
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        assert not faults, faults

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(guarded())
    left = open_descriptors() - before
    assert not left, left


def random_bytes(size: int) -> bytes:
    """Bytes that do not repeat."""
    return os.urandom(size)
