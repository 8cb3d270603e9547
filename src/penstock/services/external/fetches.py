# SPDX-License-Identifier: Apache-2.0
"""The things that a gate wants of one host service: which are asked for, and which are due. Pure.

Rules: they are asked for in the order in which they were wanted, while what is due stays within `WINDOW` bytes, or is
a single one. They may come in any order. A connection that breaks loses what was under way, and nothing else: it is
asked for again on the next one, by the same words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.errors import ProtocolError
from penstock.external.requests import FindRange
from penstock.link.wire import Plain
from penstock.services.external.session import ServiceChunk, ServiceReply
from penstock.shuffle.requests import Request

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW = 8 << 20
"""Bytes that are due at most, but for a single piece."""
_QUESTION_BYTES = 128 << 10
"""A question counts as so many."""


class ServiceCalls(Protocol):
    """The session of a connection."""

    def ask(self, request: Request[Any]) -> int:
        """Ask something; the number of the call."""

    def fetch(self, partition: int, offset: int, length: int) -> int:
        """Ask for bytes; the number of the call."""


@dataclass(frozen=True, slots=True, eq=False)
class WantedPiece:
    """A question about a partition, or bytes of its data file, that a channel wants."""

    channel: int
    question: FindRange | None = None
    partition: int = 0
    offset: int = 0
    length: int = 0

    @property
    def weight(self) -> int:
        """The bytes that it counts as."""
        return self.length or _QUESTION_BYTES


class ReceivedPiece(NamedTuple):
    """A piece that was wanted: its bytes, or the answer."""

    wanted: WantedPiece
    data: pa.Buffer | None
    answer: Plain


class ServiceFetches:
    """All that is wanted of one service and has not come yet."""

    def __init__(self) -> None:
        self._queue: deque[WantedPiece] = deque()
        self._due: dict[int, WantedPiece] = {}
        self._weight = 0
        self._target: ServiceCalls | None = None

    def __bool__(self) -> bool:
        """True if something is wanted that has not come."""
        return bool(self._queue or self._due)

    def want(self, wanted: Iterable[WantedPiece]) -> None:
        """Ask for these after all others."""
        self._queue += wanted
        self._go_on()

    def begin(self, session: ServiceCalls) -> None:
        """There is a connection."""
        self._target = session
        self._go_on()

    def end(self, *, blames: bool) -> list[ReceivedPiece]:
        """The connection is gone. Nothing that was asked is to blame: a service answers what it can't do."""
        self._target = None
        self._queue = deque([*self._due.values(), *self._queue])
        self._due.clear()
        self._weight = 0
        return []

    def took(self, message: ServiceReply | ServiceChunk) -> list[ReceivedPiece]:
        """A message has come; the pieces that came with it. ProtocolError for one that was not asked for."""
        wanted = self._due.pop(message.call, None)
        if wanted is None:
            raise ProtocolError(f"an answer to call {message.call} came, which nobody has made")
        self._weight -= wanted.weight
        self._go_on()
        match message:
            case ServiceChunk(_, data):
                return [ReceivedPiece(wanted, data, {})]
            case ServiceReply(_, plain):
                return [ReceivedPiece(wanted, None, plain)]

    def _go_on(self) -> None:
        target = self._target
        if target is None:
            return
        while self._queue and (not self._due or self._weight + self._queue[0].weight <= WINDOW):
            wanted = self._queue.popleft()
            if wanted.question is not None:
                number = target.ask(wanted.question)
            else:
                number = target.fetch(wanted.partition, wanted.offset, wanted.length)
            self._due[number] = wanted
            self._weight += wanted.weight
