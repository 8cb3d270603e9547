# SPDX-License-Identifier: Apache-2.0
"""A task's connection to its host's environment process: the one place of the task side that does socket I/O.

Rules: any thread may send; whoever waits for something receives for everybody (one at a time) and hands each
frame to the port it is for. There is no receiver thread, so a forked worker carries none. Segments are mapped
while attached; at `close` they are unmapped, or kept for the process's next task (`kept_memory`). A child that user
code forks closes its copies at once, so that the environment still sees the end of the task.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from penstock.network.attachment import (
    EVENT,
    REQUEST,
    TARGET,
    FrameReader,
    FrameType,
    frame,
    read_segments,
    read_slices,
)
from penstock.services.local.kept_memory import kept_memory
from penstock.services.local.launch import EnvironmentLaunch, connect_or_start
from penstock.services.local.welcome import Welcome, authenticate
from penstock.shuffle.control import pack, raise_for_error, unpack
from penstock.shuffle.errors import ControlError, EnvironmentLostError, TaskCancelledError
from penstock.shuffle.ids import AttemptId

_LOOK_SECONDS = 0.02
"""How often `check_cancelled` looks at the socket: often enough to stop at once, rare enough to cost nothing."""
_REPORT_SECONDS = 0.5
_HAND_IN_SECONDS = 10.0


class Port(Protocol):
    """A writer or gate: what the environment may tell it. Called with the attachment's lock held."""

    def on_grant(self, segments: tuple[int, ...]) -> None:
        """Segments to write into."""

    def on_store(self, folder: str) -> None:
        """Memory has come to its end: store in this folder."""

    def on_slice(self, channel: int, segment: int, offset: int, length: int) -> None:
        """Data of a channel."""

    def on_event(self, channel: int, data_type: int, payload: bytes) -> None:
        """An event of a channel."""

    def on_error(self, channel: int, error: BaseException) -> None:
        """A channel can't be read."""


class Attachment:
    """One task's attachment; made by `attach`."""

    def __init__(self, connection: socket.socket, welcome: Welcome, folder: Path) -> None:
        self.environment = welcome.environment
        self.address = welcome.address
        self.rendezvous = str(folder)
        self.memory = kept_memory.take(welcome)
        self._socket = connection
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)
        self._reader = FrameReader()
        self._sending = threading.Lock()
        self._changed = threading.Condition(threading.RLock())
        self._receiving = False
        self._broken: EnvironmentLostError | None = None
        self._cancel: str | None = None
        self._ports: dict[int, Port] = {}
        self._numbers = itertools.count(1)
        self._replies: dict[int, dict[str, Any]] = {}
        self._next_look = 0.0
        self._next_report = 0.0
        self._closed = False
        _open_attachments.add(self)

    def call(self, method: str, message: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Ask the environment (`local.*`) or, through it, the JobMaster; raises what the other side raised.

        Raises ControlError when there is no answer within `timeout` seconds (None: no limit).
        """
        number = next(self._numbers)
        self.send(frame(FrameType.CALL, REQUEST.pack(number) + pack({"method": method, "message": dict(message)})))
        try:
            self.wait(lambda: number in self._replies, timeout, cancellable=False)
        except TimeoutError:
            raise ControlError(f"no answer to {method} within {timeout} s") from None
        return raise_for_error(self._replies.pop(number))

    def hand_in(self, method: str, message: Mapping[str, Any]) -> None:
        """A last call of something that ends. An environment that is gone has given everything back already."""
        with contextlib.suppress(EnvironmentLostError, ControlError):
            self.call(method, message, _HAND_IN_SECONDS)

    def send(self, data: bytes) -> None:
        """Send whole frames; raises EnvironmentLostError when the environment is gone."""
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            self._broken = self._lost(error)
            raise self._broken from error

    def open_port(self, port: Port) -> int:
        """Give a writer or gate its number."""
        number = next(self._numbers)
        with self._changed:
            self._ports[number] = port
        return number

    def close_port(self, number: int) -> None:
        """Forget a writer or gate; frames for it are dropped from now on."""
        with self._changed:
            self._ports.pop(number, None)

    def wait(self, ready: Callable[[], object], timeout: float | None = None, *, cancellable: bool = True) -> None:
        """Receive until `ready()` holds; raises TimeoutError, TaskCancelledError or EnvironmentLostError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not ready():
                if cancellable and self._cancel is not None:
                    raise TaskCancelledError(self._cancel)
                if self._broken is not None:
                    raise self._broken
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left < 0:
                    raise TimeoutError
                if self._receiving:
                    self._changed.wait(left)
                else:
                    self._receive(left)

    def look(self) -> None:
        """Take what has arrived, without waiting."""
        with self._changed:
            if not self._receiving and self._broken is None:
                self._receive(0)

    def begin(self) -> None:
        """The task goes on to another attempt: it is not told to stop any more."""
        with self._changed:
            self._cancel = None

    def check_cancelled(self) -> None:
        """Raise TaskCancelledError if the task was told to stop; cheap enough for every batch."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self.look()
        if self._cancel is not None:
            raise TaskCancelledError(self._cancel)

    def report(self, metrics: Mapping[str, float]) -> None:
        """Tell the environment how far the task is; passed on with its next heartbeat. At most every half second."""
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + _REPORT_SECONDS
            self.send(frame(FrameType.REPORT, pack(dict(metrics))))

    def close(self) -> None:
        """Detach; idempotent. What was finished stays, what was not is given up by the environment."""
        if self._closed:
            return
        self._closed = True
        _open_attachments.discard(self)
        with contextlib.suppress(OSError, EnvironmentLostError):
            self.send(frame(FrameType.BYE))
        self._socket.close()
        with self._changed:
            self._ports.clear()
        if self._broken is None:
            kept_memory.give_back(self.environment, self.memory)
        else:
            self.memory.close()

    def forget(self) -> None:
        """Close this process's copies of the descriptors without a word: for a forked child."""
        self._closed = True
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())
        with contextlib.suppress(OSError):
            os.close(self.memory.fd)

    def _receive(self, timeout: float | None) -> None:
        # The condition is released while the socket is waited for, so other threads may come and wait too.
        self._receiving = True
        self._changed.release()
        try:
            count = self._receive_into(self._reader.target(), timeout)
        finally:
            self._changed.acquire()
            self._receiving = False
            self._changed.notify_all()
        if count is None:
            return
        if count == 0:
            self._broken = self._lost(None)
            return
        self._reader.received(count)
        for kind, body in self._reader.frames():
            self._dispatch(kind, body)

    def _receive_into(self, target: memoryview, timeout: float | None) -> int | None:
        try:
            if timeout is None or timeout > 0:
                self._poller.poll(None if timeout is None else timeout * 1000)
            return self._socket.recv_into(target, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            self._broken = self._lost(error)
            return None

    def _dispatch(self, kind: FrameType, body: memoryview) -> None:
        if kind is FrameType.DELIVER:
            for number, _, channel, segment, offset, length in read_slices(body):
                port = self._ports.get(number)
                if port is not None:
                    port.on_slice(channel, segment, offset, length)
        elif kind is FrameType.GRANT:
            number, segments = read_segments(body)
            writer = self._ports.get(number)
            if writer is not None:
                writer.on_grant(segments)
        elif kind is FrameType.STORE:
            (number,) = REQUEST.unpack_from(body)
            writer = self._ports.get(number)
            if writer is not None:
                writer.on_store(bytes(body[REQUEST.size :]).decode())
        elif kind is FrameType.CHANNEL_EVENT:
            number, data_type, channel = EVENT.unpack_from(body)
            gate = self._ports.get(number)
            if gate is not None:
                gate.on_event(channel, data_type, bytes(body[EVENT.size :]))
        elif kind is FrameType.CHANNEL_ERROR:
            self._channel_error(body)
        elif kind is FrameType.REPLY:
            (request,) = REQUEST.unpack_from(body)
            self._replies[request] = unpack(bytes(body[REQUEST.size :]))
        elif kind is FrameType.CANCEL:
            self._cancel = bytes(body).decode(errors="replace")

    def _channel_error(self, body: memoryview) -> None:
        number, _, channel = TARGET.unpack_from(body)
        gate = self._ports.get(number)
        if gate is None:
            return
        try:
            raise_for_error(unpack(bytes(body[TARGET.size :])))
        except Exception as error:  # noqa: BLE001 - this is the carried error, on its way to the gate
            gate.on_error(channel, error)

    def _lost(self, error: OSError | None) -> EnvironmentLostError:
        reason = f" ({error})" if error is not None else ""
        return EnvironmentLostError(
            f"the environment process {self.environment} of this host is gone{reason}:"
            " its log is removed with it; see the JobMaster's message for what it held"
        )


def attach(launch: EnvironmentLaunch, attempt: AttemptId | None = None) -> Attachment:
    """Attach this task to its host's environment process, which is started if there is none.

    Raises EnvironmentLostError or AuthenticationError.
    """
    connection = connect_or_start(launch)
    try:
        welcome = authenticate(connection, launch, attempt)
        return Attachment(connection, welcome, launch.place().folder)
    except BaseException:
        connection.close()
        raise


_open_attachments: weakref.WeakSet[Attachment] = weakref.WeakSet()


def _forget_in_child() -> None:
    for attachment in list(_open_attachments):
        attachment.forget()
    _open_attachments.clear()
    kept_memory.forget()


os.register_at_fork(after_in_child=_forget_in_child)
