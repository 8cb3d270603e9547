# SPDX-License-Identifier: Apache-2.0
"""One attached task on the environment's side: its socket, its frames, and its end.

A task's end is seen twice: by the end of its socket and by its pidfd, because a child that user code forked may keep
the socket open. Either one gives back everything the task held, once. Where the socket ends without a word the
process is dying: a moment is given to the kernel to say how. A frame of a task that it may not send ends this session
and no other; so does an error here while the task is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable

from penstock.connection.frames import FrameReader
from penstock.connection.sockets import SocketEndpoint
from penstock.environment.tasks.attached import AttachedTask
from penstock.environment.tasks.calls import TaskCalls
from penstock.environment.tasks.deaths import Deaths
from penstock.errors import AuthenticationError, ProtocolError
from penstock.link.control import unpack
from penstock.link.frames import (
    FRAME_ERRORS,
    LinkFrameType,
    name_of,
    read_call,
    read_channel,
    read_event,
    read_port,
    read_segments,
    read_slices,
    read_stored,
)
from penstock.link.peers import peer_of
from penstock.machine.process_end import NotTold, exit_code_of
from penstock.partition.extents import OWN, Extent

log = logging.getLogger("penstock.environment")

_READ_TURN = 8
"""Reads per turn before other sessions get theirs."""
_DEATH_SECONDS = 1.0
"""A process whose connection ended without a word is dead by then."""
_TOLD_SECONDS = 0.02
"""Between two questions how a dead process ended."""
_QUESTIONS = 10


class TaskSession:
    """One attached task, which has proved itself."""

    def __init__(self, endpoint: SocketEndpoint, task: AttachedTask, calls: TaskCalls, deaths: Deaths) -> None:
        self._endpoint = endpoint
        self._task = task
        self._calls = calls
        self._deaths = deaths
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._closed = False
        self._said_bye = self._is_dying = False
        self._pidfd = -1

    def start(self, welcome: bytes, memory: int) -> None:
        """Welcome the task with the memory, and begin to listen to it."""
        self._task.to_task.lost = self.close
        self._calls.enter()
        self._deaths.see(self._task.pid)
        self._endpoint.set_readable(self._readable)
        with contextlib.suppress(OSError, AttributeError):
            self._pidfd = os.pidfd_open(self._task.pid)
            self._loop.add_reader(self._pidfd, self._died)
        try:
            self._endpoint.send_descriptor(welcome, memory)
        except OSError as error:
            self._broke(f"its connection broke: {error}")

    def close(self, cause: str) -> None:
        """The task is gone: give back what it held, fail what it left unfinished; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._task.to_task.close()
        self._endpoint.close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._calls.leave(cause)

    def _broke(self, cause: str) -> None:
        """Its connection has ended. If it has not said that it would, its process will soon have, too."""
        if self._said_bye or self._pidfd < 0:
            self.close(cause)
        elif not self._is_dying:
            self._is_dying = True
            self._task.to_task.close()
            self._endpoint.close()
            self._loop.call_later(_DEATH_SECONDS, self.close, cause)

    def _died(self) -> None:
        """Its process has ended."""
        self._loop.remove_reader(self._pidfd)
        self._ask_how_it_died(_QUESTIONS)

    def _ask_how_it_died(self, questions: int) -> None:
        if self._closed:
            return
        code = None
        try:
            code = exit_code_of(self._pidfd)
        except NotTold as not_told:
            if not_told.later and questions:
                self._loop.call_later(_TOLD_SECONDS, self._ask_how_it_died, questions - 1)
                return
        self.close(self._deaths.words(self._task, code))

    def _readable(self) -> None:
        try:
            self._read()
        except ProtocolError as error:
            log.exception("task %s broke the protocol", self._task.attempt)
            self.close(f"it broke the protocol: {error}")
        except OSError as error:
            self._broke(f"its connection broke: {error}")
        except Exception as error:
            log.exception("the environment failed at serving task %s", self._task.attempt)
            self.close(f"the environment failed at serving it: {error!r}")

    def _read(self) -> None:
        reader = self._reader
        for _ in range(_READ_TURN):
            count = self._endpoint.receive_nowait(reader.next_target())
            if count is None:
                return
            if not count:
                self._broke("it ended without a word" if not self._said_bye else "it detached")
                return
            reader.received(count)
            while not self._closed and (found := reader.next_message()) is not None:
                self._handle(*found)
            if self._closed:
                return

    def _handle(self, kind: int, body: memoryview) -> None:
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise ProtocolError(f"a task sent a frame of type {name_of(kind)}")
        try:
            handler(self, body)
        except FRAME_ERRORS as error:
            raise ProtocolError(f"a frame of type {name_of(kind)} could not be read: {error!r}") from error

    def _on_slices(self, body: memoryview) -> None:
        writers = self._task.writers
        for port, target, segment, offset, length in read_slices(body):
            writers[port].take_slice(target, segment, offset, length)

    def _on_stored(self, body: memoryview) -> None:
        for port, target, length, offset, checksum in read_stored(body):
            self._task.writers[port].take_stored(target, Extent(OWN, offset, length, checksum))

    def _on_writer_event(self, body: memoryview) -> None:
        port, data_type, target, payload = read_event(body)
        self._task.writers[port].take_event(target, data_type, payload)

    def _on_overdraft(self, body: memoryview) -> None:
        writer = self._task.writers.get(read_port(body)[0])
        if writer is not None:
            writer.overdraw()

    def _on_recycle(self, body: memoryview) -> None:
        port, segments = read_segments(body)
        gate = self._task.gates.get(port)
        if gate is not None:
            gate.recycle(segments)
        else:
            self._task.returned(port, segments)

    def _on_resume(self, body: memoryview) -> None:
        port, channel, _ = read_channel(body)
        self._task.gates[port].resume(channel)

    def _on_report(self, body: memoryview) -> None:
        self._task.reported({str(name): float(value) for name, value in unpack(body).items()})

    def _on_bye(self, body: memoryview) -> None:
        self._said_bye = True

    def _on_call(self, body: memoryview) -> None:
        self._calls.take(*read_call(body)[:3])


_HANDLERS: dict[int, Callable[[TaskSession, memoryview], None]] = {
    LinkFrameType.SLICES: TaskSession._on_slices,  # noqa: SLF001 - the class's own table of frame handlers
    LinkFrameType.STORED: TaskSession._on_stored,  # noqa: SLF001
    LinkFrameType.WRITER_EVENT: TaskSession._on_writer_event,  # noqa: SLF001
    LinkFrameType.OVERDRAFT: TaskSession._on_overdraft,  # noqa: SLF001
    LinkFrameType.RECYCLE: TaskSession._on_recycle,  # noqa: SLF001
    LinkFrameType.RESUME: TaskSession._on_resume,  # noqa: SLF001
    LinkFrameType.REPORT: TaskSession._on_report,  # noqa: SLF001
    LinkFrameType.BYE: TaskSession._on_bye,  # noqa: SLF001
    LinkFrameType.CALL: TaskSession._on_call,  # noqa: SLF001
}


def peer_pid(connection: socket.socket) -> int:
    """The process at the other end, 0 where the system does not say; AuthenticationError for another user's."""
    peer = peer_of(connection)
    if peer is None:
        return 0
    if not peer.is_ours:
        raise AuthenticationError(
            f"a process of user {peer.user} (pid {peer.pid}) connected to a socket of user {os.getuid()}"
        )
    return peer.pid
