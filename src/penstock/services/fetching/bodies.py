# SPDX-License-Identifier: Apache-2.0
"""Cuts what comes over a connection into messages; large bodies are received into memory of their own at once.

Pure. The protocol says by `Heads` what a head looks like, and what a message is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

_STAGE_BYTES = 64 << 10
"""Shorter bodies, and what comes of a longer one together with its head, are copied once."""

M_co = TypeVar("M_co", covariant=True)
M = TypeVar("M")


class BodyHead(NamedTuple):
    """The head of a message: its bytes, those of the body, and True if the body is rows, which are kept."""

    head: bytes
    body: int
    is_rows: bool


class Heads(Protocol[M_co]):
    """The form of a protocol's messages."""

    def head(self, view: memoryview, /) -> BodyHead | None:
        """The head that begins here, or None where it is not whole; raises ProtocolError."""

    def message(self, head: bytes, body: pa.Buffer | bytearray, /) -> M_co:
        """A whole message; raises ProtocolError."""


class BodyReader(Generic[M]):
    """Makes messages of what arrives."""

    __slots__ = ("_body", "_filled", "_head", "_heads", "_stage", "_staged", "_target")

    def __init__(self, heads: Heads[M]) -> None:
        self._heads = heads
        self._stage = bytearray(_STAGE_BYTES)
        self._staged = 0
        """The bytes of the stage that hold something."""
        self._head = b""
        self._body: pa.Buffer | bytearray | None = None
        self._target = memoryview(b"")
        self._filled = 0

    def room(self) -> memoryview:
        """The memory that the next bytes go to; never empty."""
        if self._is_long:
            return self._target[self._filled :]
        return memoryview(self._stage)[self._staged :]

    def received(self, count: int) -> list[M]:
        """So many bytes have come to where `room` said; the messages that are whole now."""
        if self._is_long:
            self._filled += count
            return [self._whole()] if self._filled == len(self._target) else []
        self._staged += count
        found: list[M] = []
        view, begin = memoryview(self._stage), 0
        while True:
            if self._body is None:
                taken = self._begin(view[begin : self._staged])
                if not taken:
                    break
                begin += taken
            begin += self._fill(view[begin : self._staged])
            if self._filled < len(self._target):
                break
            found.append(self._whole())
        left = self._staged - begin
        view[:left] = bytes(view[begin : self._staged])
        self._staged = left
        return found

    @property
    def _is_long(self) -> bool:
        """True if so much of a body is missing that it is received where it belongs."""
        return self._body is not None and len(self._target) - self._filled >= _STAGE_BYTES

    def _begin(self, view: memoryview) -> int:
        """Read the head of a message; the bytes that it takes, 0 where it is not whole yet."""
        found = self._heads.head(view)
        if found is None:
            return 0
        self._head, size, is_rows = found
        if is_rows:
            import pyarrow as pa  # not above: who only calls has no rows

            self._body = pa.allocate_buffer(size)
        else:
            self._body = bytearray(size)
        self._target, self._filled = memoryview(self._body).cast("B"), 0
        return len(self._head)

    def _fill(self, view: memoryview) -> int:
        """Move what has come into the body."""
        count = min(len(view), len(self._target) - self._filled)
        self._target[self._filled : self._filled + count] = view[:count]
        self._filled += count
        return count

    def _whole(self) -> M:
        body, self._body = self._body, None
        self._target, self._filled = memoryview(b""), 0
        assert body is not None  # noqa: S101 - it was filled
        return self._heads.message(self._head, body)
