# SPDX-License-Identifier: Apache-2.0
"""Cuts what a client sends to the host service into frames, within limits, behind its greeting. Sans-I/O.

Frames change with versions, the greeting does not: so one of another version is told apart from bytes that mean
nothing. Over the port the handshake does that. A question has at most `QUESTION_BYTES`, so that reading it holds up
no other client, and that of a client that has not said who it is `STRANGER_BYTES`. A question counts in its user's
share from its first part until it was begun: it may wait in line for its turn.
"""

from __future__ import annotations

import time
from typing import Final

from penstock.connection.budgets import UserShare
from penstock.connection.frames import HEADER, FrameReader, read_beginning
from penstock.connection.handshake import check_greeting, greeting
from penstock.errors import ProtocolError

QUESTION_BYTES: Final = 256 << 10
STRANGER_BYTES: Final = 64 << 10
_CAPACITY: Final = 4 << 10


class QuestionReader:
    """A decoder; VersionError for a peer of another version, ProtocolError for a question beyond its limits."""

    def __init__(self, share: UserShare, peer: str, *, greets: bool) -> None:
        self._frames = FrameReader(_CAPACITY)
        self._share = share
        self._peer = peer
        self._word = memoryview(bytearray(len(greeting()) if greets else 0))
        self._missing = len(self._word)
        self._half = 0
        self._is_whole = False
        """True for a question that was given out, and may not be begun."""
        self.is_known = not greets
        self.since = 0.0
        """The moment at which a question has begun to come that has not come whole, or 0."""

    @property
    def is_at_boundary(self) -> bool:
        """True if the stream may end here."""
        return self._missing in (0, len(self._word)) and self._frames.is_at_boundary

    def next_target(self) -> memoryview:
        """The place for the next bytes."""
        return self._word[-self._missing :] if self._missing else self._frames.next_target()

    def received(self, count: int) -> None:
        """So many bytes of the last target were filled."""
        if not self._missing:
            self._frames.received(count)
            return
        self._missing -= count
        if not self._missing:
            check_greeting(bytes(self._word), self._peer)

    def next_message(self) -> tuple[int, memoryview] | None:
        """The next whole frame, or None until more bytes come."""
        if self._missing:
            return None
        if self._is_whole:
            self._let_go()
        message = self._frames.next_message()
        if message is not None:
            self._is_whole, self.since = True, 0.0
        elif self._frames.is_at_boundary:
            self._let_go()
        elif self._half == 0:
            self._take()
        return message

    def close(self) -> None:
        """Nothing more comes; idempotent."""
        self._let_go()

    def _take(self) -> None:
        self.since = self.since or time.monotonic()
        arrived = self._frames.kept
        if len(arrived) < HEADER.size:
            return
        length, kind, _, _ = read_beginning(arrived)
        limit = QUESTION_BYTES if self.is_known else STRANGER_BYTES
        if length > limit:
            raise ProtocolError(
                f"a question of type {kind} with {length:,} bytes has come: {limit:,} is the limit here"
            )
        if length > _CAPACITY:
            if not self._share.take_half(length):
                raise ProtocolError("its user has more questions that have come in part than memory is there for")
            self._half = length

    def _let_go(self) -> None:
        self._share.half -= self._half
        self._half, self.since, self._is_whole = 0, 0.0, False
