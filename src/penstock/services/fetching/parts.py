# SPDX-License-Identifier: Apache-2.0
"""The parts that a service brings to a gate that fetches: its channels, and its protocol without a socket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from penstock.errors import PartitionLostError
from penstock.shuffle import ChannelDescriptor, InputGateDescriptor, Received, ShuffleDescriptor


class FetchedPiece(Protocol):
    """Something that a channel wanted, and its bytes, if it is bytes that have come."""

    @property
    def wanted(self) -> Any:
        """The thing that was wanted; its `channel` is the number of the channel."""

    @property
    def data(self) -> Any:
        """The bytes that came in a buffer; None where none did."""


class FetchedChannel(Protocol):
    """One channel: says what it wants, takes what comes, gives batches."""

    @property
    def wanted(self) -> ChannelDescriptor:
        """The description of the channel."""

    @property
    def is_over(self) -> bool:
        """True if everything was given."""

    @property
    def due(self) -> float | None:
        """The time at which it wants something, if it does."""

    def wants(self, now: float) -> Sequence[Any]:
        """The things to fetch now, if any."""

    def took(self, fetched: Any, now: float) -> Sequence[Any]:
        """Something came; the things to fetch next. Raises the PartitionError that says why it can't be read."""

    def next(self) -> Received | None:
        """The next batch or event that is there."""

    def lose(self, cause: str) -> PartitionLostError:
        """Its service is gone; the error that the reader gets."""


class WireSession(Protocol):
    """The protocol of one connection."""

    def outgoing(self) -> bytes:
        """The bytes to be sent now; they are given once."""

    def closed(self) -> str:
        """The meaning of an end of the connection now, for people."""

    def room(self) -> memoryview:
        """The memory that the next bytes go to; never empty."""

    def received(self, count: int) -> list[Any]:
        """So many bytes have come to `room()`; the messages that they complete."""


class FetchQueue(Protocol):
    """All that is wanted of one service and has not come yet."""

    def __bool__(self) -> bool:
        """True if something is wanted that has not come."""

    def want(self, wanted: Iterable[Any], /) -> None:
        """Ask for these after all others."""

    def begin(self, session: Any, /) -> None:
        """There is a connection."""

    def end(self, *, blames: bool) -> Sequence[FetchedPiece]:
        """The connection is gone; the things that are to blame for it, if it was there and any are."""

    def took(self, message: Any, /) -> Sequence[FetchedPiece]:
        """A message has come; the things that came with it."""


class FetchSources(Protocol):
    """The service, as a gate needs it."""

    def channel(self, number: int, wanted: ChannelDescriptor, gate: InputGateDescriptor) -> FetchedChannel:
        """A channel of a gate."""

    def line_name(self, source: ShuffleDescriptor) -> str:
        """The name of the line to this partition: those with the same name share one."""

    def line(self, source: ShuffleDescriptor) -> Any:
        """A `ServiceLine` to the service that has this partition."""

    def close(self) -> None:
        """The gate reads nothing more; idempotent."""
