# SPDX-License-Identifier: Apache-2.0
"""A task's connection to its host's environment process: the one place of the task side that does socket I/O.

Rules: any thread may send; a thread that waits for something receives for all (one at a time), and the core hands
each frame to the port it is for. There is no receiver thread, so a forked worker carries none. Segments are mapped
when a service asks for them; at `close` they are unmapped, or kept for the process's next task (`kept_memory`). A
child that user code forks closes its copies at once, so that the environment still sees the end of the task.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from penstock.attachment.attachment_core import AttachmentCore
from penstock.attachment.data_plane import AttachedDataPlane
from penstock.attachment.kept_memory import kept_memory
from penstock.attachment.launch import EnvironmentLaunch, connect_or_start, replace_environment
from penstock.attachment.watches import Watches
from penstock.connection.frames import frame
from penstock.connection.handshake import Credentials, Handshake, Role, Service
from penstock.errors import (
    AuthenticationError,
    ControlError,
    EnvironmentLostError,
)
from penstock.link.commands import TaskAction
from penstock.link.control import pack, raise_for_error
from penstock.link.frames import LinkFrameType
from penstock.link.pulse import LOOK_SECONDS, PulseWatch
from penstock.link.rendezvous import Rendezvous
from penstock.link.rpc import Answered
from penstock.link.welcome import Welcome, enter
from penstock.link.wire import Plain, from_wire
from penstock.machine.disk_work import DISKS
from penstock.settings import Settings
from penstock.shuffle.ids import AttemptId
from penstock.shuffle.metrics import DISK_GROUP
from penstock.shuffle.requests import Request

A = TypeVar("A")

_LOOK_SECONDS = 0.02
"""Seconds between two looks of `check_cancelled` at the socket: few, to stop at once, yet enough to cost nothing."""
_REPORT_SECONDS = 0.5
_HAND_IN_SECONDS = 10.0
_ATTACH_TRIES = 5
_ATTACH_PAUSE_SECONDS = 0.02
"""After the first try, and each time as much more: a process that was killed closes its sockets one by one."""
_TIMEVAL = struct.Struct("@ll")


class Attachment:
    """One task's attachment, which is the task's `TaskHost`; made by `attach`."""

    def __init__(
        self, connection: socket.socket, welcome: Welcome, memory_fd: int, place: Rendezvous, lease: float
    ) -> None:
        self.environment = welcome.environment
        self.address = welcome.address
        self._core = AttachmentCore(welcome.environment)
        self._memory = kept_memory.offer(welcome, memory_fd)
        self._data_plane: AttachedDataPlane | None = None
        self._place = place
        self._pulse = PulseWatch(place.pulse, lease)
        self.beside: Callable[[], Mapping[str, float]] = dict
        """Gives more figures of the task, those of its process, for each report."""
        self._socket = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(LOOK_SECONDS), 0))
        self._watches = Watches(connection.fileno())
        self._sending = threading.Lock()
        self._changed = threading.Condition(threading.RLock())
        self._receiving = False
        self._next_look = 0.0
        self._next_report = 0.0
        self._next_pulse = 0.0
        self._closed = False
        _open_attachments.add(self)

    @property
    def arrivals(self) -> int:
        """The number of things that have come for the task: it changes when any has."""
        return self._core.arrivals.count

    @property
    def actions(self) -> deque[TaskAction]:
        """The JobMaster's words to the task, for it to take."""
        return self._core.arrivals.actions

    def arrived(self) -> None:
        """Something has come that is no frame, or an answer that ends the wait. Called by the receiving thread."""
        self._core.arrivals.count += 1

    def data_plane(self) -> AttachedDataPlane:
        """The environment's data plane; the first call maps its memory."""
        with self._changed:
            if self._data_plane is None:
                memory = self._memory.map()
                self._data_plane = AttachedDataPlane(memory, self._core.ports, self._changed, self._send)
            return self._data_plane

    def ask(self, request: Request[A], timeout: float | None = None) -> A:
        """Ask the environment or, through it, the JobMaster; raises what the other side raised.

        Raises ControlError when there is no answer within `timeout` seconds (None: no limit).
        """
        replies: list[Plain] = []
        with self._changed:
            number, question = self._core.ask(request, replies.append)
        try:
            self._send(question)
            self._wait(lambda: replies, timeout, cancellable=False)
        except TimeoutError:
            raise ControlError(f"no answer to {request.METHOD} within {timeout} s") from None
        finally:
            with self._changed:
                self._core.give_up(number)
        answer: A = from_wire(request.ANSWER, raise_for_error(replies.pop()))
        return answer

    def tell(self, request: Request[Any], answered: Answered) -> None:
        """Ask without waiting. `answered` gets the answer, an error too, when a thread receives it. Any thread."""
        with self._changed:
            _, question = self._core.ask(request, answered)
        self._send(question)

    def hand_in(self, request: Request[Any]) -> None:
        """A last request of something that ends. An environment that is gone has given everything back already."""
        with contextlib.suppress(EnvironmentLostError, ControlError):
            self.ask(request, _HAND_IN_SECONDS)

    def wait(self, seen: int, seconds: float | None = None) -> None:
        """Return when `arrivals` is not `seen`, or after so many seconds. Any thread.

        Raises TaskCancelledError, or EnvironmentLostError. It takes all that has arrived, however short the time.
        """
        arrivals = self._core.arrivals
        if arrivals.count == seen:
            if seconds == 0:
                self.look()
            else:
                with contextlib.suppress(TimeoutError):
                    self._wait(lambda: arrivals.count != seen, seconds, cancellable=True)
        self.check()

    def waker(self) -> Callable[[], None]:
        """Give a function that ends the task's wait, or the next one. Any thread may call it."""
        with self._changed:
            return self._watches.waker()

    def wake_in(self, seconds: float) -> None:
        """End the task's wait after so many seconds."""
        with self._changed:
            self._watches.wake_in(seconds)

    def watch(self, descriptor: int, arrived: Callable[[], None], *, writes: bool = False) -> None:
        """Call this when something can be read here, or written, and end the task's wait with that."""
        with self._changed:
            self._watches.watch(descriptor, arrived, writes=writes)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor, which is still open; idempotent."""
        with self._changed:
            self._watches.unwatch(descriptor)

    def look(self) -> None:
        """Take what has arrived, without waiting."""
        with self._changed:
            if not self._receiving and self._core.end is None and self._watches.poll(0):  # far cheaper than a receive
                self._receive(0)

    def begin(self) -> None:
        """The task goes on to another attempt: it is not told to stop any more, nor what the last one was to do."""
        with self._changed:
            self._core.begin()

    def check(self) -> None:
        """Raise what ends the task, where that has come: TaskCancelledError, or EnvironmentLostError."""
        self._core.check()

    def check_cancelled(self) -> None:
        """Raise TaskCancelledError if the task was told to stop; cheap enough for every batch."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self.look()
        self._core.check_told()

    def report(self, metrics: Mapping[str, float]) -> None:
        """Tell the environment how far the task is; passed on with its next heartbeat. At most every half second."""
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + _REPORT_SECONDS
            self._send(frame(LinkFrameType.REPORT, pack({**metrics, **self.beside(), **_disk_figures()})))

    def close(self) -> None:
        """Detach; idempotent.

        A partition that was finished stays, one that was not is given up by the environment.
        """
        if self._closed:
            return
        self._closed = True
        _open_attachments.discard(self)
        with contextlib.suppress(OSError, EnvironmentLostError):
            self._send(frame(LinkFrameType.REPORT, pack(_disk_figures())))
            self._send(frame(LinkFrameType.BYE))
        self._socket.close()
        with self._changed:
            self._watches.close()
            self._core.ports.clear()
            self._memory.close(is_lost=self._core.end is not None)

    def forget(self) -> None:
        """Close this process's copies of the descriptors without a word: for a forked child."""
        self._closed = True
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())
        self._watches.forget()
        self._memory.forget()

    def _wait(self, ready: Callable[[], object], timeout: float | None, *, cancellable: bool) -> None:
        left, begin = timeout, time.monotonic()
        with self._changed:
            while not ready():
                self._core.check(cancellable=cancellable)
                if left is not None and left < 0:
                    raise TimeoutError
                if self._receiving:
                    self._changed.wait(None if left is None else self._watches.until_alarm(left))
                else:
                    self._receive(left)
                left = None if timeout is None else begin + timeout - time.monotonic()

    def _receive(self, timeout: float | None) -> None:
        # The condition is released while the socket is waited for, so other threads may come and wait too.
        self._receiving = True
        self._changed.release()
        try:
            count = self._receive_into(self._core.target(), timeout)
        finally:
            self._changed.acquire()
            self._receiving = False
            self._changed.notify_all()
        arrived = self._watches.take()
        self._core.arrivals.count += arrived
        if count is not None:
            self._core.received(count)
        elif not arrived:
            self._look_after_environment()

    def _receive_into(self, target: memoryview, timeout: float | None) -> int | None:
        try:
            if timeout is None or timeout > 0:
                seconds = LOOK_SECONDS if timeout is None else min(timeout, LOOK_SECONDS)
                self._watches.poll(self._watches.until_alarm(seconds))
            return self._socket.recv_into(target, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            self._core.lost(error)
            return None

    def _send(self, data: bytes) -> None:
        """Send whole frames; raises EnvironmentLostError when the environment is gone."""
        try:
            with self._sending:
                left = memoryview(data)[self._send_some(data) :]
                while len(left):
                    left = left[self._send_some(left) :]
        except OSError as error:
            raise self._core.lost(error) from error

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:  # it has waited for LOOK_SECONDS
            self._look_after_environment()
            if self._core.end is not None:
                raise TimeoutError("it does not run") from None
            return 0

    def _look_after_environment(self) -> None:
        """End an environment that does not run any more, as the task would wait for it for ever."""
        if time.monotonic() < self._next_pulse:  # a wait of a millisecond need not read a file
            return
        self._next_pulse = time.monotonic() + LOOK_SECONDS
        if self._core.end is None and self._pulse.has_stopped():
            self._core.lost(TimeoutError(f"it has not run for {self._pulse.lease:g} s"))
            replace_environment(self._place, self._socket)


def attach(launch: EnvironmentLaunch, attempt: AttemptId | None = None) -> Attachment:
    """Attach this task to its host's environment process, which is started if there is none.

    One that dies meanwhile, or to which too many connect, closes the connection: the task tries again, beside the
    next one where it died. Raises EnvironmentLostError or AuthenticationError.
    """
    place, lease = launch.place(), Settings.from_conf(launch.settings).environment.lease_timeout
    identity = f"pid {os.getpid()} attempt {attempt if attempt is not None else 'none'}"[:120]
    credentials = Credentials(identity, launch.secret)
    tries = 0
    while True:
        connection = connect_or_start(launch)
        pulse = PulseWatch(place.pulse, lease)
        patience = max(LOOK_SECONDS, lease - pulse.age)
        try:
            handshake = Handshake(Role.CLIENT, Service.TASKS, credentials, str(place.socket))
            return Attachment(connection, *enter(connection, handshake, patience), place, lease)
        except (EnvironmentLostError, AuthenticationError) as error:
            connection.close()
            if pulse.age < lease:  # else it is replaced
                tries += 1
                if isinstance(error.__cause__, TimeoutError) or tries == _ATTACH_TRIES:
                    raise
                time.sleep(tries * _ATTACH_PAUSE_SECONDS)
        except BaseException:
            connection.close()
            raise


def _disk_figures() -> dict[str, float]:
    """The work of this process for disks since it began, for its environment to add up."""
    return {
        f"{DISK_GROUP}{name}.{disk}": value
        for disk, figures in DISKS.figures().items()
        for name, value in figures.items()
    }


_open_attachments: weakref.WeakSet[Attachment] = weakref.WeakSet()


def _forget_in_child() -> None:
    for attachment in list(_open_attachments):
        attachment.forget()
    _open_attachments.clear()
    kept_memory.forget()


os.register_at_fork(after_in_child=_forget_in_child)
