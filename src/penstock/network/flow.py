# SPDX-License-Identifier: Apache-2.0
"""Flow control as a policy, chosen by its name for each job: `credit`, `tcp` or `throttle`.

- `credit`: one credit is one free buffer at the receiver; the sender sends what it has credit for (`ledger`). A
  channel without buffers holds up no other one.
- `tcp`: the sender sends what it has, until its socket takes no more and the water marks of its connection are
  reached; the receiver stops to read the *whole* connection when a channel has no buffer, so the socket's window
  closes. So Flink did before its version 1.5, with these marks.
- `throttle`: as `tcp`, with deep queues at the receivers. A gate that holds more than its high-water mark raises a
  flag in a coordinator; all sources of the job watch it and pause, until every gate is below its low-water mark.
  So Storm does. Beyond the queue the socket's window is all that is left, so memory is bounded, too.

Channels of one connection have one policy, so jobs of another policy have a connection of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.connection.frame_connection import WaterMarks
from penstock.errors import ProtocolError, SettingError
from penstock.network.ledger import FloatingSource, ReceiverCredit, SenderCredit
from penstock.network.uncredited import OpenSender, PooledBuffers, WaterLevel

HIGH_MARK: Final = 0.9
LOW_MARK: Final = 0.4
"""Parts of a receiver's queue at which Storm raises its flag and takes it down."""

SenderRight = SenderCredit | OpenSender
"""The right of a sender to send."""
ReceiverBuffers = ReceiverCredit | PooledBuffers
"""The room of a receiver."""
OnFlag = Callable[[bool], None]


class QueueSizes(Protocol):
    """The settings that say how many buffers a gate has."""

    @property
    def floating_buffers_per_gate(self) -> int:
        """Beside its channels' own ones."""

    @property
    def throttle_queue(self) -> int:
        """Under `throttle`."""


@dataclass(frozen=True, slots=True)
class FlowControl:
    """One policy. `code` is its number on the wire."""

    name: str
    code: int
    sender: Callable[[int], SenderRight]
    receiver: Callable[[Sequence[int], FloatingSource, WaterLevel], ReceiverBuffers]
    floating: Callable[[QueueSizes], int]
    marks: Callable[[int], WaterMarks | None]
    """Of a connection, by the size of a segment; None: the usual ones."""
    level: Callable[[int, OnFlag], WaterLevel]
    """That of a gate with so many buffers."""
    is_stopped_by_window: bool
    """A peer that takes nothing for a long time has not failed: a consumer of its may be slow."""


def _no_flag(buffers: int, _: OnFlag) -> WaterLevel:
    return WaterLevel(buffers + 1, 0, lambda _: None)


def _throttle_level(buffers: int, on_flag: OnFlag) -> WaterLevel:
    high = max(1, round(buffers * HIGH_MARK))
    return WaterLevel(high, min(high - 1, round(buffers * LOW_MARK)), on_flag)


CREDIT: Final = FlowControl(
    name="credit",
    code=0,
    sender=SenderCredit,
    receiver=lambda exclusive, source, _: ReceiverCredit(exclusive, source),
    floating=lambda sizes: sizes.floating_buffers_per_gate,
    marks=lambda _: None,
    level=_no_flag,
    is_stopped_by_window=False,
)
TCP: Final = FlowControl(
    name="tcp",
    code=1,
    sender=OpenSender,
    receiver=PooledBuffers,
    floating=lambda sizes: sizes.floating_buffers_per_gate,
    marks=lambda segment: WaterMarks(2 * segment, segment + 1),
    level=_no_flag,
    is_stopped_by_window=True,
)
THROTTLE: Final = FlowControl(
    name="throttle",
    code=2,
    sender=OpenSender,
    receiver=PooledBuffers,
    floating=lambda sizes: sizes.throttle_queue,
    marks=lambda _: None,
    level=_throttle_level,
    is_stopped_by_window=True,
)
_BY_NAME: Final = {flow.name: flow for flow in (CREDIT, TCP, THROTTLE)}
_BY_CODE: Final = {flow.code: flow for flow in _BY_NAME.values()}


def flow_control(name: str) -> FlowControl:
    """The policy of this name; raises SettingError."""
    found = _BY_NAME.get(name)
    if found is None:
        raise SettingError(f"there is no flow control {name!r}: it is one of {', '.join(_BY_NAME)}")
    return found


def flow_of_code(code: int) -> FlowControl:
    """The policy of this number; raises ProtocolError."""
    found = _BY_CODE.get(code)
    if found is None:
        raise ProtocolError(f"flow control {code} is not known here")
    return found
