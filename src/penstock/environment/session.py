# SPDX-License-Identifier: Apache-2.0
"""One attached task on the environment's side: its socket, its writers and gates, and its end.

A task's end is seen twice: by the end of its socket and by its pidfd, because a child that user code forked may
keep the socket open. Either one gives back everything the task held, once. Whatever a task sends that it may not
send ends this session and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from penstock.environment.calls import LOCAL_CALLS
from penstock.environment.hybrid_port import HybridPort
from penstock.environment.inputs import GatePort
from penstock.environment.outputs import WriterPort
from penstock.network.attachment import (
    EVENT,
    REQUEST,
    TARGET,
    FrameReader,
    FrameType,
    frame,
    read_segments,
    read_slices,
    read_stored,
    segments_frame,
    slices_frame,
)
from penstock.network.handshake import Handshake, Role
from penstock.partition.hybrid_items import Extent
from penstock.partition.tiers import OWN
from penstock.shuffle import AttemptId, PartitionId
from penstock.shuffle.control import (
    REGISTER_TASK,
    TASK_FINISHED,
    TASK_LOST,
    TASK_METHODS,
    error_message,
    pack,
    unpack,
)
from penstock.shuffle.errors import AuthenticationError, ControlError, PenstockError, ProtocolError

if TYPE_CHECKING:
    from penstock.environment.host import Host

log = logging.getLogger("penstock.environment")

_READ_TURN = 8
"""Reads per turn before other sessions get theirs."""


class TaskSession:
    """One attached task."""

    def __init__(self, host: Host, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._host = host
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self.pid = _peer_pid(connection)
        self.attempt: AttemptId | None = None
        self._identity: AttemptId | None = None
        self.owners: set[AttemptId] = set()
        self.metrics: dict[str, float] = {}
        self.writers: dict[int, WriterPort | HybridPort] = {}
        self.gates: dict[int, GatePort] = {}
        self.results: set[PartitionId] = set()
        self.holdings = host.references.attach(f"pid {self.pid} session {id(self):x}")
        self._handshake: Handshake | None = Handshake(
            Role.SERVER, host.config.secret, host.environment, f"unix socket, pid {self.pid}"
        )
        self._received = bytearray()
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._slices: list[tuple[int, int, int, int, int, int]] = []
        self._grants: dict[int, list[int]] = {}
        self._unsent = memoryview(b"")
        self._closed = False
        self._reported = False
        self.is_cancelled = False
        self._said_bye = False
        self._pidfd = -1

    @property
    def is_closed(self) -> bool:
        """Whether the task is gone."""
        return self._closed

    def start(self) -> None:
        """Begin to listen to the task."""
        self._host.sessions.add(self)
        self._loop.add_reader(self._socket.fileno(), self._readable)
        with contextlib.suppress(OSError, AttributeError):
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, lambda: self.close(f"its process (pid {self.pid}) died"))

    def grant(self, port: int, segment: int) -> None:
        """Give a writer a segment."""
        self._grants.setdefault(port, []).append(segment)
        self._host.touch_session(self)

    def store(self, port: int, folder: str) -> None:
        """Tell a writer where to store what memory can't hold."""
        self._put(FrameType.STORE, REQUEST.pack(port) + folder.encode())

    def deliver(self, record: tuple[int, int, int, int, int, int]) -> None:
        """Give a gate a slice."""
        self._slices.append(record)
        self._host.touch_session(self)

    def event(self, port: int, data_type: int, channel: int, payload: bytes) -> None:
        """Give a gate an event, in order with its slices."""
        self._put(FrameType.CHANNEL_EVENT, EVENT.pack(port, data_type, channel) + payload)

    def error(self, port: int, channel: int, error: BaseException) -> None:
        """Tell a gate that a channel can't be read, in order with its slices."""
        self._put(FrameType.CHANNEL_ERROR, TARGET.pack(port, 0, channel) + pack(error_message(error)))

    def cancel(self, cause: str) -> None:
        """Tell the task to stop."""
        self.is_cancelled = True
        self._put(FrameType.CANCEL, cause.encode())

    def flush(self) -> None:
        """Send what the turn has gathered; called at its end."""
        if self._closed or len(self._unsent):
            return
        self._gather_slices()
        for port, segments in self._grants.items():
            self._out.append(segments_frame(FrameType.GRANT, port, segments))
        self._grants.clear()
        if self._out:
            self._unsent = memoryview(b"".join(self._out))
            self._out.clear()
            self._send()

    def close(self, cause: str) -> None:
        """The task is gone: give back what it held, fail what it left unfinished; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._host.sessions.discard(self)
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        for gate in list(self.gates.values()):
            gate.close()
        for writer in list(self.writers.values()):
            writer.fail(cause)
        self.holdings.drop_all()
        for partition in list(self.results):
            self._host.results.fail(partition, cause)
        if self.attempt is not None and not self._reported and self._host.control is not None:
            self._host.control.tell(TASK_LOST, {"attempt": self.attempt.to_wire(), "cause": cause})

    def _put(self, kind: FrameType, body: bytes) -> None:
        self._gather_slices()
        self._out.append(frame(kind, body))
        self._host.touch_session(self)

    def _gather_slices(self) -> None:
        if self._slices:
            self._out.append(slices_frame(FrameType.DELIVER, self._slices))
            self._slices.clear()

    def _send(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(f"its connection broke: {error}")
            return
        self._unsent = self._unsent[sent:]
        if len(self._unsent):
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        self._send()
        if not len(self._unsent):
            self._host.touch_session(self)

    def _readable(self) -> None:
        try:
            if self._handshake is not None:
                self._shake(self._handshake)
            else:
                self._read()
        except AuthenticationError as error:
            log.warning("%s", error)
            self.close(str(error))
        except ProtocolError as error:
            log.exception("task %s broke the protocol", self.attempt)
            self.close(f"it broke the protocol: {error}")
        except OSError as error:
            self.close(f"its connection broke: {error}")

    def _shake(self, handshake: Handshake) -> None:
        data = self._socket.recv(handshake.needed - len(self._received))
        if not data:
            raise handshake.closed()
        self._received += data
        if len(self._received) < handshake.needed:
            return
        handshake.receive(bytes(self._received))
        self._received.clear()
        answer = handshake.outgoing()
        if answer:
            self._socket.send(answer)
        if handshake.is_done:
            self._handshake = None
            self._welcome()

    def _welcome(self) -> None:
        memory = self._host.memory
        welcome = {
            "environment": self._host.environment,
            "address": self._host.address,
            "segments": memory.count,
            "segment_size": memory.segment_size,
        }
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", memory.fd))]
        self._socket.sendmsg([frame(FrameType.WELCOME, pack(welcome))], rights)

    def _read(self) -> None:
        for _ in range(_READ_TURN):
            try:
                count = self._socket.recv_into(self._reader.target())
            except BlockingIOError:
                return
            if not count:
                self.close("it ended without a word" if not self._said_bye else "it detached")
                return
            self._reader.received(count)
            for kind, body in self._reader.frames():
                self._handle(kind, body)
                if self._closed:
                    return

    def _handle(self, kind: FrameType, body: memoryview) -> None:
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise ProtocolError(f"a task sent a frame of type {kind.name}")
        try:
            handler(self, body)
        except (struct.error, KeyError, TypeError, ValueError, IndexError) as error:
            raise ProtocolError(f"a frame of type {kind.name} could not be read: {error!r}") from error

    def _on_slices(self, body: memoryview) -> None:
        for port, flags, target, segment, offset, length in read_slices(body):
            self.writers[port].take_slice(flags, target, segment, offset, length)

    def _on_stored(self, body: memoryview) -> None:
        for port, _, target, length, offset, checksum in read_stored(body):
            writer = self.writers[port]
            if not isinstance(writer, HybridPort):
                raise ProtocolError("the writer of a pipelined partition stores nothing")
            writer.take_stored(target, Extent(OWN, offset, length, checksum))

    def _on_writer_event(self, body: memoryview) -> None:
        port, data_type, target = EVENT.unpack_from(body)
        self.writers[port].take_event(target, data_type, bytes(body[EVENT.size :]))

    def _on_overdraft(self, body: memoryview) -> None:
        (port,) = REQUEST.unpack_from(body)
        writer = self.writers.get(port)
        if writer is not None:
            writer.overdraw()

    def _on_recycle(self, body: memoryview) -> None:
        port, segments = read_segments(body)
        gate = self.gates.get(port)
        if gate is not None:
            gate.recycle(segments)

    def _on_resume(self, body: memoryview) -> None:
        port, _, channel = TARGET.unpack_from(body)
        self.gates[port].resume(channel)

    def _on_task_event(self, body: memoryview) -> None:
        port, _, channel = TARGET.unpack_from(body)
        self.gates[port].task_event(channel, bytes(body[TARGET.size :]))

    def _on_report(self, body: memoryview) -> None:
        self.metrics = {str(name): float(value) for name, value in unpack(bytes(body)).items()}

    def _on_bye(self, body: memoryview) -> None:
        self._said_bye = True

    def _on_call(self, body: memoryview) -> None:
        (request,) = REQUEST.unpack_from(body)
        call = unpack(bytes(body[REQUEST.size :]))
        method, message = str(call["method"]), dict(call["message"])
        if method.startswith("local."):
            self._call_local(request, method, message)
        elif method in TASK_METHODS:
            if method == REGISTER_TASK:
                self._begin(AttemptId.from_wire(tuple(message["attempt"])))
            message["environment"] = self._host.environment
            message["address"] = self._host.address
            self._host.in_background(lambda: self._relay(request, method, message))
        else:
            self._reply(request, error_message(ProtocolError(f"a task may not call {method}")))

    def _call_local(self, request: int, method: str, message: dict[str, Any]) -> None:
        handler = LOCAL_CALLS.get(method)
        try:
            if handler is None:
                raise ProtocolError(f"there is no call {method}")
            answer = handler(self._host, self, message)
        except PenstockError as error:
            self._reply(request, error_message(error))
            return
        if isinstance(answer, dict):
            self._reply(request, answer)
        else:
            self._host.in_background(lambda: self._answer_later(request, answer))

    async def _answer_later(self, request: int, waited_for: Awaitable[dict[str, Any]]) -> None:
        try:
            answer = await waited_for
        except PenstockError as error:
            answer = error_message(error)
        except (KeyError, TypeError, ValueError) as error:
            self.close(f"it broke the protocol: {error!r}")
            return
        self._reply(request, answer)

    async def _relay(self, request: int, method: str, message: dict[str, Any]) -> None:
        control = self._host.control
        try:
            if control is None:
                raise ControlError("this environment has no JobMaster")
            answer = await control.call(method, message)
            if method == TASK_FINISHED:
                self._finished()
            elif method == REGISTER_TASK:
                self._deployed(answer)
        except PenstockError as error:
            answer = error_message(error)
        self._reply(request, answer)
        if method == REGISTER_TASK and self.attempt is not None:
            cause = self._host.take_cancel(self.attempt)
            if cause is not None:
                self.cancel(cause)

    def _begin(self, identity: AttemptId) -> None:
        """The task asks for work, by its own name; a worker is then given an attempt."""
        self._identity = self.attempt = identity
        self.metrics = {}
        self._reported = self.is_cancelled = False

    def _deployed(self, answer: dict[str, Any]) -> None:
        """It has got an attempt to work on, or may end."""
        deployment = answer.get("deployment")
        if deployment is None:
            self._reported = True
        elif not self._closed:
            self.attempt = AttemptId.from_wire(tuple(deployment[0]))

    def _finished(self) -> None:
        """Its attempt has ended: what the JobMaster still says of that one is not for what it does next."""
        self._reported = self.attempt == self._identity
        self.attempt = self._identity
        self.owners.clear()

    def _reply(self, request: int, answer: dict[str, Any]) -> None:
        if not self._closed:
            self._put(FrameType.REPLY, REQUEST.pack(request) + pack(answer))


_HANDLERS: dict[FrameType, Callable[[TaskSession, memoryview], None]] = {
    FrameType.SLICES: TaskSession._on_slices,  # noqa: SLF001 - the class's own table of frame handlers
    FrameType.STORED: TaskSession._on_stored,  # noqa: SLF001
    FrameType.WRITER_EVENT: TaskSession._on_writer_event,  # noqa: SLF001
    FrameType.OVERDRAFT: TaskSession._on_overdraft,  # noqa: SLF001
    FrameType.RECYCLE: TaskSession._on_recycle,  # noqa: SLF001
    FrameType.RESUME: TaskSession._on_resume,  # noqa: SLF001
    FrameType.TASK_EVENT: TaskSession._on_task_event,  # noqa: SLF001
    FrameType.REPORT: TaskSession._on_report,  # noqa: SLF001
    FrameType.BYE: TaskSession._on_bye,  # noqa: SLF001
    FrameType.CALL: TaskSession._on_call,  # noqa: SLF001
}


def _peer_pid(connection: socket.socket) -> int:
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid != os.getuid():
        raise AuthenticationError(f"a process of user {uid} (pid {pid}) connected to a socket of user {os.getuid()}")
    return int(pid)
