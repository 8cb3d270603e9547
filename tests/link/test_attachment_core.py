# SPDX-License-Identifier: Apache-2.0
"""The core of a task's attachment, without a socket: who hears what comes, in any order and cut anywhere."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from penstock.attachment.attachment_core import AttachmentCore
from penstock.connection.frames import HEADER
from penstock.errors import (
    EnvironmentLostError,
    NotWantedError,
    PenstockError,
    ProtocolError,
    StorageError,
    TaskCancelledError,
)
from penstock.link.calls import GetStatistics, Statistics
from penstock.link.commands import CancelTask, TaskAction, instruction
from penstock.link.control import carried_error, error_message, pack
from penstock.link.frames import (
    LinkFrameType,
    channel_frame,
    event_frame,
    frame,
    port_frame,
    read_call,
    reply_frame,
    segments_frame,
    slices_frame,
)
from penstock.link.wire import Plain, to_wire
from penstock.shuffle import AttemptId
from penstock.shuffle.actions import StopSource

ATTEMPT = AttemptId("job", 0, 0, 1)
STEPS = (
    "open",
    "close",
    "slice",
    "event",
    "error",
    "grant",
    "store",
    "ask",
    "give up",
    "answer",
    "act",
    "cancel",
    "unwanted",
)


class Heard:
    """A port that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_slice(self, *slice_of: int) -> None:
        """Note it."""
        self.told.append(slice_of)

    def on_event(self, channel: int, data_type: int, payload: bytes) -> None:
        """Note it."""
        self.told.append((channel, data_type, payload))

    def on_error(self, channel: int, error: BaseException) -> None:
        """Note it."""
        self.told.append((channel, type(error), str(error)))

    def on_grant(self, segments: tuple[int, ...]) -> None:
        """Note it."""
        self.told.append(segments)

    def on_store(self, folder: str) -> None:
        """Note it."""
        self.told.append(folder)


def receive(core: AttachmentCore, data: bytes, piece: int = 1 << 16) -> None:
    """Let bytes come, so many at a time."""
    for start in range(0, len(data), piece):
        part = data[start : start + piece]
        core.target()[: len(part)] = part
        core.received(len(part))


class Line:
    """A line and its model: what each port and question is to hear.

    Frames that are sent wait in `said`, to come later.
    """

    def __init__(self) -> None:
        self.core = AttachmentCore("env")
        self.ports: dict[int, Heard] = {}
        self.due: dict[int, list[Any]] = {}
        self.closed: set[int] = set()
        self.asked: deque[int] = deque()
        self.answers: dict[int, list[Plain]] = {}
        self.given_up: set[int] = set()
        self.answered: set[int] = set()
        self.frames = 0
        self.actions = 0
        self.cause: tuple[type, str] | None = None

    def step(self, kind: str, which: int) -> bytes:
        """Do one thing at the task's end; or what the environment says, as bytes."""
        if kind == "open":
            port = Heard()
            number = self.core.ports.add(port)
            assert number not in self.ports
            self.ports[number], self.due[number] = port, []
        elif kind == "ask":
            replies: list[Plain] = []
            number, question = self.core.ask(GetStatistics(), replies.append)
            assert read_call(memoryview(question)[HEADER.size :]) == (number, "GetStatistics", {}, 0)
            self.answers[number] = replies
            self.asked.append(number)
        elif kind == "close" and self.ports:
            number = self._port(which)
            self.core.ports.remove(number)
            self.closed.add(number)
        elif kind == "give up" and self.asked:
            number = self.asked[which % len(self.asked)]
            self.core.give_up(number)
            self.given_up.add(number)
        elif kind == "answer" and self.asked:
            number = self.asked.popleft()
            self.answered.add(number)
            return reply_frame(number, to_wire(Statistics({"n": float(number)})))
        else:
            return self._said(kind, which)
        return b""

    def _port(self, which: int) -> int:
        return sorted(self.ports)[which % len(self.ports)]

    def _said(self, kind: str, which: int) -> bytes:
        if kind == "act":
            self.frames, self.actions = self.frames + 1, self.actions + 1
            return frame(LinkFrameType.COMMAND, pack(instruction(TaskAction(ATTEMPT, StopSource()))))
        if kind == "cancel":
            self.frames, self.cause = self.frames + 1, (TaskCancelledError, str(which))
            return frame(LinkFrameType.CANCEL, str(which).encode())
        if kind == "unwanted":
            self.frames, self.cause = self.frames + 1, self.cause or (NotWantedError, str(which))
            return frame(LinkFrameType.UNWANTED, str(which).encode())
        if not self.ports:
            return b""
        number = self._port(which)
        said: dict[str, tuple[bytes, Any]] = {
            "slice": (slices_frame(LinkFrameType.DELIVER, [(number, 1, 2, 3, which)]), (1, 2, 3, which)),
            "event": (event_frame(LinkFrameType.CHANNEL_EVENT, number, 5, which, b"x"), (which, 5, b"x")),
            "grant": (segments_frame(LinkFrameType.GRANT, number, [which]), (which,)),
            "store": (port_frame(LinkFrameType.STORE, number, "/here"), "/here"),
            "error": (
                channel_frame(LinkFrameType.CHANNEL_ERROR, number, which, pack(error_message(StorageError("full")))),
                (which, StorageError, "full"),
            ),
        }
        if kind not in said:
            return b""
        self.frames += 1
        if number not in self.closed:
            self.due[number].append(said[kind][1])
        return said[kind][0]

    def check(self) -> None:
        """All that was due has come, once and in order, and nothing else."""
        assert {number: port.told for number, port in self.ports.items()} == self.due
        for number, replies in self.answers.items():
            heard = [to_wire(Statistics({"n": float(number)}))] if number in self.answered - self.given_up else []
            assert replies == heard
        assert self.core.arrivals.count == self.frames
        assert len(self.core.arrivals.actions) == self.actions
        told = self.core.told
        assert (None if told is None else (type(told), str(told))) == self.cause
        assert self.core.end is None


@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99)), max_size=60),
    piece=st.integers(1, 40),
)
@settings(max_examples=examples(150), deadline=None)
def test_everybody_hears_what_is_for_him(steps: list[tuple[str, int]], piece: int) -> None:
    """Ports and questions come and go while frames come, cut anywhere: each is told its own, once and in order."""
    line = Line()
    for kind, which in steps:
        receive(line.core, line.step(kind, which), piece)
    line.check()


WRONG = {
    "not for a task": frame(LinkFrameType.CALL),
    "a port that never was": slices_frame(LinkFrameType.DELIVER, [(9, 0, 0, 0, 0)]),
    "a question that never was": reply_frame(9, {}),
    "a broken list": frame(LinkFrameType.DELIVER, b"x"),
    "a broken event": frame(LinkFrameType.CHANNEL_EVENT, b"x"),
    "an order for the environment": frame(LinkFrameType.COMMAND, pack(instruction(CancelTask(ATTEMPT, "why")))),
    "no order": frame(LinkFrameType.COMMAND, pack({"op": "Nothing"})),
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_what_may_not_be_said_ends_the_line(words: bytes) -> None:
    """The first reason stays, also when the connection ends after it; an order to stop is raised ahead of it."""
    core = AttachmentCore("env")
    receive(core, words)
    with pytest.raises(ProtocolError, match="environment env broke the protocol") as first:
        core.check()
    core.received(0)
    assert isinstance(core.lost(ConnectionResetError("reset")), EnvironmentLostError)
    with pytest.raises(ProtocolError) as second:
        core.check()
    assert second.value is first.value
    core.told = TaskCancelledError("the user")
    with pytest.raises(TaskCancelledError, match="the user"):
        core.check()


def test_an_end_says_which_environment_is_gone() -> None:
    """Its name, and the reason where there is one."""
    core = AttachmentCore("env-7")
    assert "(reset)" in str(core.lost(ConnectionResetError("reset")))
    ended = AttachmentCore("env-7")
    ended.received(0)
    with pytest.raises(EnvironmentLostError, match="environment process env-7 of this host is gone:"):
        ended.check(cancellable=False)


def test_another_attempt_hears_nothing_of_the_last_one() -> None:
    """Its orders and its end are forgotten; what is counted goes on."""
    core = AttachmentCore("env")
    receive(core, frame(LinkFrameType.CANCEL, b"it is over"))
    receive(core, frame(LinkFrameType.COMMAND, pack(instruction(TaskAction(ATTEMPT, StopSource())))))
    core.begin()
    core.check()
    assert not core.arrivals.actions
    assert core.arrivals.count == 2


def test_an_error_in_an_answer_is_the_askers() -> None:
    """It is an answer like any other: the line goes on."""
    core = AttachmentCore("env")
    replies: list[Plain] = []
    number, _ = core.ask(GetStatistics(), replies.append)
    receive(core, reply_frame(number, error_message(PenstockError("no"))))
    core.check()
    assert str(carried_error(replies[0])) == "no"
