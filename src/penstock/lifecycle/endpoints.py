# SPDX-License-Identifier: Apache-2.0
"""The lives of the two ends of an exchange that a task holds, for any service: a writer and an input gate.

A writer that fails or is closed before it has finished fails its partition; a failure that comes when nothing is
being written changes nothing, and either end may be closed any number of times.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.lifecycle.table import Lifecycle, Table


class WriterState(Enum):
    """The states of a result partition's writer."""

    CREATED = "created"
    WRITING = "writing"
    FINISHED = "finished"
    FAILED = "failed"
    CLOSED = "closed"


class WriterEvent(Enum):
    """The events of a writer: the calls of its task."""

    SET_UP = "setup"
    FINISH = "finish"
    FAIL = "fail"
    CLOSE = "close"


class GateState(Enum):
    """The states of an input gate."""

    CREATED = "created"
    OPEN = "open"
    CLOSED = "closed"


class GateEvent(Enum):
    """The events of a gate."""

    SET_UP = "setup"
    CLOSE = "close"


WRITER_TABLE: Final[Table[WriterState, WriterEvent]] = {
    (WriterState.CREATED, WriterEvent.SET_UP): WriterState.WRITING,
    (WriterState.WRITING, WriterEvent.FINISH): WriterState.FINISHED,
    (WriterState.WRITING, WriterEvent.FAIL): WriterState.FAILED,
    **{(state, WriterEvent.FAIL): state for state in WriterState if state is not WriterState.WRITING},
    **{(state, WriterEvent.CLOSE): WriterState.CLOSED for state in WriterState},
}

GATE_TABLE: Final[Table[GateState, GateEvent]] = {
    (GateState.CREATED, GateEvent.SET_UP): GateState.OPEN,
    **{(state, GateEvent.CLOSE): GateState.CLOSED for state in GateState},
}


class WriterLifecycle(Lifecycle[WriterState, WriterEvent]):
    """The state of one writer."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(name, WRITER_TABLE, WriterState.CREATED)


class GateLifecycle(Lifecycle[GateState, GateEvent]):
    """The state of one gate."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(name, GATE_TABLE, GateState.CREATED)
