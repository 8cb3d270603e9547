# SPDX-License-Identifier: Apache-2.0
"""The things that travel on a channel: the data type byte, and the handle of a slice of a segment.

Rules: a handle is three numbers and a flag, never memory; the process that maps the segment turns it into bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class DataType(IntEnum):
    """One byte on the wire. Values above the known ones are treated as ordinary events."""

    DATA = 0
    EVENT = 1
    PRIORITY_EVENT = 2
    ALIGNED_BARRIER = 3
    OVERTAKING_BARRIER = 4
    """It passes the data that is queued, but never in the middle of a message."""


class BufferSlice(NamedTuple):
    """Bytes `offset .. offset + length` of a segment; `finished` says that its builder ships nothing after it.

    A finished slice may be empty: it then only says that the builder is done with the segment. One that `continues`
    begins in the middle of a message.
    """

    segment: int
    offset: int
    length: int
    finished: bool = False
    continues: bool = False
