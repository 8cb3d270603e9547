# SPDX-License-Identifier: Apache-2.0
"""The serving side of one connection: many readers of subpartition views, one frame at a time.

Events in: messages of the client (`receive`), availability of a view (the listener given to `request_view`),
deadlines (`expire`), loss of the connection. Out: `next_frame()`, and `wake()` whenever it may have something again.

Rules. Control frames first; then round robin over the readers that hold credit and data, one buffer a turn. A data
buffer costs one credit, an empty one too, because it was counted in the backlog that brought the credit; events cost
none. A reader that sent an aligned barrier is not polled until it is resumed. A fault of one view or one receiver
ends that reader with an ERROR_RESPONSE and spares the others; only bytes that break the protocol end the connection.
Messages for a receiver that is gone are ignored: they crossed its end on the wire.

Limits: MAX_READERS for a connection; per reader at most one backlog announcement and one error wait to be written.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from penstock.buffer.data_types import DataType
from penstock.buffer.view import BufferOrEvent, ServableView
from penstock.connection.frames import OutgoingFrame
from penstock.errors import PartitionNotProducedError, ProtocolError
from penstock.lifecycle.table import Lifecycle
from penstock.network.decoder import FrameDecoder
from penstock.network.flow import CREDIT, FlowControl, flow_of_code
from penstock.network.frames import BUFFER_HEAD, CLIENT_TYPES, encode_header, outgoing, payload_checksum
from penstock.network.lifecycle import READER_TABLE, ReaderEvent, ReaderState
from penstock.network.messages import (
    AddCredit,
    BacklogAnnouncement,
    BufferHeader,
    CancelPartitionRequest,
    CloseRequest,
    ErrorResponse,
    Message,
    PartitionRequest,
    Ping,
    Pong,
    ResumeConsumption,
    error_to_code,
)
from penstock.network.views import PartitionProvider

MAX_READERS: Final = 1 << 18
"""512 tasks reading 512 tasks over one connection: more is a fault."""
_SEQUENCES: Final = 1 << 32


class AvailabilityListener:
    """The callable that a view or a provider holds; it keeps no hold on a connection that is gone."""

    __slots__ = ("_queue", "_receiver")

    def __init__(self, queue: PartitionRequestQueue, receiver: int) -> None:
        self._queue: PartitionRequestQueue | None = queue
        self._receiver = receiver

    def __call__(self) -> None:
        """The view or the partition has something new."""
        if self._queue is not None:
            self._queue.data_available(self._receiver)

    def end(self) -> None:
        """Calls have no effect from now on."""
        self._queue = None


class _Reader:
    __slots__ = (
        "announced",
        "credit",
        "lifecycle",
        "listener",
        "request",
        "sequence",
        "view",
    )

    def __init__(self, request: PartitionRequest, listener: AvailabilityListener, flow: FlowControl) -> None:
        self.request = request
        self.listener = listener
        self.credit = flow.sender(request.credit)
        self.lifecycle = Lifecycle(
            f"reader {request.receiver} of {request.partition}", READER_TABLE, ReaderState.WAITING
        )
        self.view: ServableView | None = None
        self.sequence = 0
        """Messages sent so far; on the wire modulo 2**32."""
        self.announced = 0
        """The backlog the receiver was last told."""

    def is_ready(self) -> bool:
        """True if a turn would send something."""
        view = self.view
        if view is None or self.lifecycle.state is not ReaderState.READING:
            return False
        return view.is_available and (self.credit.credit > 0 or view.next_is_event)

    def has_news(self) -> bool:
        """True if the receiver, which grants credit for a backlog only, must be told of another backlog."""
        if self.view is None or self.lifecycle.state is not ReaderState.READING:
            return False
        if self.credit.initial > 0 or self.credit.credit > 0:
            return False
        return 0 < self.view.backlog != self.announced


class PartitionRequestQueue:
    """Core of the serving side of one connection. Single-threaded, no I/O; see the module's rules."""

    def __init__(self, provider: PartitionProvider, wake: Callable[[], None] = lambda: None) -> None:
        self._provider = provider
        self._readers: dict[int, _Reader] = {}
        self._ready: OrderedDict[_Reader, None] = OrderedDict()
        self._control: deque[Message] = deque()
        self._announcements: OrderedDict[_Reader, None] = OrderedDict()
        self._pong: Pong | None = None
        self._is_closed = False
        self.wake = wake
        self.flow = CREDIT
        """As the first request says."""
        self.is_close_requested = False
        self.decoder = FrameDecoder(CLIENT_TYPES)

    @property
    def readers(self) -> int:
        """Readers that are open or wait for their partition."""
        return len(self._readers)

    def is_waiting(self, receiver: int) -> bool:
        """Tell whether this receiver's partition is not produced yet, so that a deadline is needed."""
        reader = self._readers.get(receiver)
        return reader is not None and reader.lifecycle.state is ReaderState.WAITING

    def receive(self, message: Message) -> None:
        """Handle one message of the client. Raises ProtocolError where the connection cannot go on."""
        match message:
            case AddCredit(receiver, credit):
                self._with_reader(receiver, lambda reader: self._add_credit(reader, credit))
            case PartitionRequest():
                self._request(message)
            case ResumeConsumption(receiver):
                self._with_reader(receiver, self._resume)
            case CancelPartitionRequest(receiver):
                self._cancel(receiver)
            case CloseRequest():
                self.is_close_requested = True
            case Ping(token):
                self._pong = Pong(token)
                self.wake()
            case _:
                raise ProtocolError(f"a client sent {type(message).__name__}")

    def data_available(self, receiver: int) -> None:
        """The view has something, has failed, or its partition was registered."""
        reader = self._readers.get(receiver)
        if reader is None:
            return
        if reader.view is None:
            self._open_view(reader)
        else:
            self._enqueue(reader)

    def expire(self, receiver: int) -> None:
        """The deadline passed: if the partition is still not produced, say so."""
        if self.is_waiting(receiver):
            reader = self._readers[receiver]
            text = f"partition {reader.request.partition} was not produced before the deadline"
            self._fail(reader, PartitionNotProducedError(text))

    def farewell(self, error: BaseException | None) -> OutgoingFrame | None:
        """The last frame for the client before the connection is closed: the reason, if the client is to blame."""
        if isinstance(error, ProtocolError):
            return outgoing(ErrorResponse(None, error_to_code(error), str(error)))
        return None

    def connection_lost(self, error: BaseException | None = None) -> None:
        """Release every view. Idempotent."""
        self._is_closed = True
        self._control.clear()
        self._announcements.clear()
        self._ready.clear()
        faults = []
        for reader in list(self._readers.values()):
            try:
                self._remove(reader, ReaderEvent.CANCEL)
            except Exception as fault:  # noqa: BLE001 - a view that raises must not keep the others from being released
                faults.append(fault)
        if faults:
            raise ExceptionGroup("views raised when they were released", faults)

    def next_frame(self) -> OutgoingFrame | None:
        """The next frame to send, or None until `wake` is called."""
        while (message := self._next_control()) is None and self._ready:
            reader, _ = self._ready.popitem(last=False)
            frame = self._take_turn(reader)
            if frame is not None:
                return frame
        return None if message is None else outgoing(message)

    def _next_control(self) -> Message | None:
        if self._pong is not None:
            pong, self._pong = self._pong, None
            return pong
        if self._control:
            return self._control.popleft()
        while self._announcements:
            reader, _ = self._announcements.popitem(last=False)
            if reader.view is not None and reader.has_news():
                reader.announced = reader.view.backlog
                return BacklogAnnouncement(reader.request.receiver, reader.announced)
        return None

    def _request(self, request: PartitionRequest) -> None:
        if request.receiver in self._readers:
            raise ProtocolError(f"receiver {request.receiver} requested a partition twice")
        if len(self._readers) + len(self._control) >= MAX_READERS:
            raise ProtocolError(f"more than {MAX_READERS} readers and unread answers on one connection")
        if not self._readers:
            self.flow = flow_of_code(request.flow)
        elif request.flow != self.flow.code:
            raise ProtocolError(f"flow control {request.flow} on a connection of {self.flow.name}")
        listener = AvailabilityListener(self, request.receiver)
        reader = self._readers[request.receiver] = _Reader(request, listener, self.flow)
        self._open_view(reader)

    def _open_view(self, reader: _Reader) -> None:
        if not reader.lifecycle.allows(ReaderEvent.OPEN):
            return
        request = reader.request
        reader.lifecycle.move(ReaderEvent.OPEN)
        try:
            view = self._provider.request_view(request.partition, request.first, request.last, reader.listener)
        except PartitionNotProducedError:
            reader.lifecycle.move(ReaderEvent.MISS)
            return
        except Exception as error:  # noqa: BLE001 - one partition's fault must not end the connection
            self._fail(reader, error)
            return
        reader.view = view
        reader.lifecycle.move(ReaderEvent.PRODUCED)
        reader.credit.read_ahead(view.on_credit)
        self._enqueue(reader)

    def _with_reader(self, receiver: int, action: Callable[[_Reader], None]) -> None:
        reader = self._readers.get(receiver)
        if reader is None:
            return
        try:
            action(reader)
        except Exception as error:  # noqa: BLE001 - one reader's fault must not end the connection
            self._fail(reader, error)

    def _add_credit(self, reader: _Reader, credit: int) -> None:
        reader.credit.grant(credit)
        if reader.view is not None:
            reader.view.on_credit(credit)
        self._enqueue(reader)

    def _resume(self, reader: _Reader) -> None:
        if not reader.lifecycle.allows(ReaderEvent.RESUME) or reader.view is None:
            raise ProtocolError(f"RESUME_CONSUMPTION for a channel that is not blocked: {reader.lifecycle}")
        if reader.credit.initial == 0:
            reader.credit.reset()
        reader.lifecycle.move(ReaderEvent.RESUME)
        reader.view.resume()
        self._enqueue(reader)

    def _cancel(self, receiver: int) -> None:
        reader = self._readers.get(receiver)
        if reader is not None:
            self._remove(reader, ReaderEvent.CANCEL)

    def _enqueue(self, reader: _Reader) -> None:
        view = reader.view
        if reader in self._ready or view is None or reader.lifecycle.state is ReaderState.RELEASED:
            return
        if view.failure is not None:
            self._fail(reader, view.failure)
        elif reader.is_ready():
            self._ready[reader] = None
            self.wake()
        elif reader not in self._announcements and reader.has_news():
            self._announcements[reader] = None
            self.wake()

    def _take_turn(self, reader: _Reader) -> OutgoingFrame | None:
        view = reader.view
        if view is None or reader.lifecycle.state is not ReaderState.READING:
            return None
        try:
            if view.failure is not None:
                raise view.failure
            taken = view.poll() if reader.is_ready() else None
            frame = None if taken is None else self._frame(reader, view, taken)
        except Exception as error:  # noqa: BLE001 - one view's fault must not end the connection
            self._fail(reader, error)
            return None
        self._enqueue(reader)
        return frame

    def _frame(self, reader: _Reader, view: ServableView, taken: BufferOrEvent) -> OutgoingFrame:
        payload, recycle = self._provider.outgoing(taken)
        if isinstance(payload, memoryview) and payload.format != "B":
            payload = payload.cast("B")
        length = len(payload)
        try:
            if taken.data_type == DataType.DATA:
                reader.credit.spend()
            header = BufferHeader(
                reader.request.receiver,
                taken.subpartition,
                reader.sequence % _SEQUENCES,
                0 if taken.data_type == DataType.ALIGNED_BARRIER else view.backlog,
                taken.data_type,
                payload_checksum(payload),
                length,
            )
            head = encode_header(header)
        except BaseException:
            if recycle is not None:
                recycle()
            raise
        reader.sequence += 1
        reader.announced = header.backlog
        if taken.data_type == DataType.ALIGNED_BARRIER:
            reader.lifecycle.move(ReaderEvent.BARRIER)
        parts = (head, payload) if length else (head,)
        return OutgoingFrame(parts, BUFFER_HEAD + length, recycle)

    def _fail(self, reader: _Reader, error: BaseException) -> None:
        if reader.lifecycle.state is ReaderState.RELEASED:
            return
        text = str(error) or type(error).__name__
        self._remove(reader, ReaderEvent.FAIL)
        if not self._is_closed:
            self._control.append(ErrorResponse(reader.request.receiver, error_to_code(error), text))
            self.wake()

    def _remove(self, reader: _Reader, event: ReaderEvent) -> None:
        reader.lifecycle.move(event)
        del self._readers[reader.request.receiver]
        reader.listener.end()
        view, reader.view = reader.view, None
        if view is not None:
            view.release()
