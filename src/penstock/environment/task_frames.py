# SPDX-License-Identifier: Apache-2.0
"""The words of an environment to one attached task: gathered during a turn, sent at its end.

Slices and grants are gathered into one frame each; whatever else is said keeps its place among the slices. When the
socket takes no more, the rest waits for it, and later frames are gathered after it.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.connection.frames import frame
from penstock.connection.transport import Endpoint
from penstock.environment.turn import Turn
from penstock.link.commands import TaskAction, instruction
from penstock.link.control import error_message, pack
from penstock.link.frames import (
    LinkFrameType,
    SliceRecord,
    channel_frame,
    event_frame,
    port_frame,
    reply_frame,
    segments_frame,
    slices_frame,
)
from penstock.link.wire import Plain


class TaskFrames:
    """The outgoing side of one connection; a member of the turn. `lost` is called, with the cause, when it breaks.

    Not so where the task has closed it: the reading side learns that too, after all that the task has said.
    """

    def __init__(self, endpoint: Endpoint, turn: Turn) -> None:
        self.lost: Callable[[str], None] = _ignore
        self._endpoint = endpoint
        self._turn = turn
        self._out: list[bytes] = []
        self._slices: list[SliceRecord] = []
        self._grants: dict[int, list[int]] = {}
        self._unsent = memoryview(b"")
        self._is_closed = False

    def grant(self, port: int, segment: int) -> None:
        """Give a writer a segment."""
        self._grants.setdefault(port, []).append(segment)
        self._turn.flush(self)

    def store(self, port: int, folder: str) -> None:
        """Tell a writer where to store what memory can't hold."""
        self._put(port_frame(LinkFrameType.STORE, port, folder))

    def deliver(self, record: SliceRecord) -> None:
        """Give a gate a slice."""
        self._slices.append(record)
        self._turn.flush(self)

    def event(self, port: int, data_type: int, channel: int, payload: bytes) -> None:
        """Give a gate an event, in order with its slices."""
        self._put(event_frame(LinkFrameType.CHANNEL_EVENT, port, data_type, channel, payload))

    def error(self, port: int, channel: int, error: BaseException) -> None:
        """Tell a gate that a channel can't be read, in order with its slices; or a writer that it can't go on."""
        self._put(channel_frame(LinkFrameType.CHANNEL_ERROR, port, channel, pack(error_message(error))))

    def cancel(self, cause: str, *, is_unwanted: bool = False) -> None:
        """Tell the task to stop; `is_unwanted`: its rows are not wanted, so that is no failure."""
        self._put(frame(LinkFrameType.UNWANTED if is_unwanted else LinkFrameType.CANCEL, cause.encode()))

    def action(self, action: TaskAction) -> None:
        """Pass on what the JobMaster has for the task."""
        self._put(frame(LinkFrameType.COMMAND, pack(instruction(action))))

    def reply(self, number: int, answer: Plain) -> None:
        """Answer a call."""
        self._put(reply_frame(number, answer))

    def take_turn(self) -> None:
        """Send what the turn has gathered."""
        if self._is_closed or len(self._unsent):
            return
        self._gather_slices()
        for port, segments in self._grants.items():
            self._out.append(segments_frame(LinkFrameType.GRANT, port, segments))
        self._grants.clear()
        if self._out:
            self._unsent = memoryview(b"".join(self._out))
            self._out.clear()
            self._send()

    def give_up(self, error: Exception) -> None:
        """The environment has failed at something for this task: it is not served any more."""
        self.lost(f"the environment failed at serving it: {error!r}")

    def close(self) -> None:
        """Send nothing more; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._endpoint.set_writable(None)

    def _put(self, whole: bytes) -> None:
        self._gather_slices()
        self._out.append(whole)
        self._turn.flush(self)

    def _gather_slices(self) -> None:
        if self._slices:
            self._out.append(slices_frame(LinkFrameType.DELIVER, self._slices))
            self._slices.clear()

    def _send(self) -> None:
        try:
            sent = self._endpoint.send_nowait([self._unsent])
        except (BrokenPipeError, ConnectionResetError):
            self.close()
            return
        except OSError as error:
            self.lost(f"its connection broke: {error}")
            return
        self._unsent = self._unsent[sent:]
        if len(self._unsent):
            self._endpoint.set_writable(self._writable)

    def _writable(self) -> None:
        self._endpoint.set_writable(None)
        self._send()
        if not len(self._unsent):
            self._turn.flush(self)


def _ignore(_: str) -> None:
    pass
