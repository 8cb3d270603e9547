# SPDX-License-Identifier: Apache-2.0
"""The talk of a task and its environment: open ports, questions, orders, and the end of the line.

Bytes go in, and calls of those they are for come out; what is to be sent comes out as bytes. There is no socket,
clock, lock or thread in here: the shell (`attachment`) receives and sends, and holds its lock around each call.

Rules: a frame that is not for a task, for a port or call that never was, or that can't be read, ends the line with
ProtocolError; what crossed the closing of its port, or an answer that is not waited for any more, is dropped. A line
ends once: the first reason stays.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.attachment.ports import PORT_FRAMES, Ports
from penstock.connection.frames import FrameReader
from penstock.errors import (
    EnvironmentLostError,
    NotWantedError,
    PenstockError,
    ProtocolError,
    TaskCancelledError,
)
from penstock.link.commands import TaskAction, read_instruction
from penstock.link.control import unpack
from penstock.link.frames import FRAME_ERRORS, LinkFrameType, name_of
from penstock.link.numbers import Numbered
from penstock.link.rpc import Answered, OpenCalls
from penstock.shuffle.requests import Request


class Arrivals:
    """The arrivals at a task: `count` goes up with every frame but the answers; `actions` are for it to take."""

    __slots__ = ("actions", "count")

    def __init__(self) -> None:
        self.count = 0
        self.actions: deque[TaskAction] = deque()


class AttachmentCore:
    """One line, from its welcome to its end."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self.arrivals = Arrivals()
        self.ports: Ports = Numbered()
        self.end: PenstockError | None = None
        """Why nothing more can be said."""
        self.told: TaskCancelledError | None = None
        """Why the task is to stop."""
        self._calls = OpenCalls()
        self._reader = FrameReader()

    def target(self) -> memoryview:
        """Memory to receive into next."""
        return self._reader.next_target()

    def received(self, count: int) -> None:
        """So many bytes have come into the target; 0 is the end of the stream."""
        if count == 0:
            self.lost(None)
            return
        self._reader.received(count)
        try:
            while (found := self._reader.next_message()) is not None:
                self._take(*found)
        except (PenstockError, *FRAME_ERRORS) as error:
            self._break_off(error)

    def lost(self, cause: OSError | None) -> EnvironmentLostError:
        """Nothing more comes or goes; the error says so."""
        reason = f" ({cause})" if cause is not None else ""
        error = EnvironmentLostError(
            f"the environment process {self.environment} of this host is gone{reason}:"
            " its log is removed with it; see the JobMaster's message for what it held"
        )
        self.end = self.end or error
        return error

    def ask(self, request: Request[Any], answered: Answered) -> tuple[int, bytes]:
        """The number of a question, and what to send; `answered` is called when the answer is received."""
        return self._calls.ask(request, answered)

    def give_up(self, number: int) -> None:
        """Wait no more for this answer; idempotent."""
        self._calls.give_up(number)

    def begin(self) -> None:
        """The task goes on to another attempt: it is not told to stop any more, nor what the last one was to do."""
        self.told = None
        self.arrivals.actions.clear()

    def check(self, *, cancellable: bool = True) -> None:
        """Raise what ends the task, where that has come: TaskCancelledError, or what ended the line."""
        if cancellable:
            self.check_told()
        if self.end is not None:
            raise self.end

    def check_told(self) -> None:
        """Raise TaskCancelledError where the task was told to stop, NotWantedError where its rows are not wanted."""
        if self.told is not None:
            raise type(self.told)(str(self.told))

    def _take(self, kind: int, body: memoryview) -> None:
        for_port = PORT_FRAMES.get(kind)
        if for_port is not None:
            for_port(self.ports, body)
        elif kind == LinkFrameType.REPLY:
            self._calls.answer(body)
            return
        elif kind == LinkFrameType.COMMAND:
            self._act(body)
        elif kind == LinkFrameType.CANCEL:
            self.told = TaskCancelledError(bytes(body).decode(errors="replace"))
        elif kind == LinkFrameType.UNWANTED:
            self.told = self.told or NotWantedError(bytes(body).decode(errors="replace"))
        else:
            raise ProtocolError(f"a frame of type {name_of(kind)} is not for a task")
        self.arrivals.count += 1

    def _act(self, body: memoryview) -> None:
        action = read_instruction(unpack(body))
        if not isinstance(action, TaskAction):
            raise ProtocolError(f"{action} is not for a task")
        self.arrivals.actions.append(action)

    def _break_off(self, error: Exception) -> None:
        broken = ProtocolError(f"the environment {self.environment} broke the protocol: {error}")
        broken.__cause__ = error
        self.end = self.end or broken
