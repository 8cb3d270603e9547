# SPDX-License-Identifier: Apache-2.0
"""One channel of a gate over host services: from the question where its rows are to their end. Only a loan does I/O.

Rules: neighbouring extents are fetched together, up to `CHUNK_BYTES`; a longer extent is fetched in pieces. Pieces
may come in any order; rows are given in that of the file. A channel that is lent the file reads a stretch of it when
it has given the last one (`lending`), and fetches what it can't read. A partition that is being written is asked for
again and again; one that no task has begun to write, until the deadline.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import (
    PartitionNotProducedError,
    PartitionReleasedError,
    ProducerFailedError,
    ProtocolError,
)
from penstock.external.requests import CHUNK_BYTES, FindRange, FoundRange, KeptState, read_kept
from penstock.link.control import carried_error
from penstock.link.wire import Plain, from_wire
from penstock.services.external.fetches import ReceivedPiece, WantedPiece
from penstock.services.external.lending import Lender, LentFile
from penstock.services.fetching.extent_batches import FetchedExtent
from penstock.services.fetching.extent_channel import ExtentChannel
from penstock.shuffle import ChannelDescriptor, EndOfPartition

if TYPE_CHECKING:
    import pyarrow as pa

_AGAIN_SECONDS = 0.02


@dataclass(slots=True)
class _Neighbours:
    """Neighbouring extents; their bytes come in one piece, or those of a long one in several."""

    extents: list[FetchedExtent]
    missing: int = 0
    pieces: dict[int, pa.Buffer] = field(default_factory=dict)

    @property
    def begin(self) -> int:
        return self.extents[0].offset

    @property
    def end(self) -> int:
        return self.extents[-1].offset + self.extents[-1].length

    def bytes(self) -> memoryview:
        """All bytes, once nothing is missing."""
        if len(self.pieces) == 1:
            return memoryview(next(iter(self.pieces.values()))).cast("B")
        return memoryview(b"".join(memoryview(self.pieces[offset]).cast("B") for offset in sorted(self.pieces)))


class ExternalChannel(ExtentChannel):
    """Life: `wants` and `took` in turns, `next` as long as it gives something; `is_over` at the end."""

    def __init__(
        self,
        number: int,
        wanted: ChannelDescriptor,
        schema: pa.Schema,
        deadline: float,
        lender: Lender | None = None,
    ) -> None:
        super().__init__(number, wanted, schema, "of the host service")
        self._deadline = deadline
        self._due: float | None = 0.0
        self._began: float | None = None
        self._fetching: dict[WantedPiece, _Neighbours] = {}
        self._in_order: deque[_Neighbours] = deque()
        """Those that were not given yet, in the order of the rows."""
        self._end: EndOfPartition | None = None
        self._is_closed = False
        self._lender = lender
        self._loan: LentFile | None = None

    @property
    def is_over(self) -> bool:
        """True if everything was given."""
        return self._is_closed and not self._batches

    @property
    def due(self) -> float | None:
        """The time at which it wants something, if it does."""
        return self._due if self._loan is None else 0.0

    def wants(self, now: float) -> list[WantedPiece]:
        """The question to ask now, or the pieces to fetch, if any."""
        if self._loan is not None:
            return self._read_loan(self._loan)
        if self._due is None or now < self._due:
            return []
        self._due = None
        if self._began is None:
            self._began = now
        wanted = self.wanted
        return [WantedPiece(self.number, FindRange(wanted.source.partition, wanted.subpartition, wanted.count))]

    def took(self, fetched: ReceivedPiece, now: float) -> list[WantedPiece]:
        """Something came; the pieces to fetch next. Raises the error that says why it can't be read."""
        if fetched.data is not None:
            self._took_bytes(fetched.wanted, fetched.data)
            return []
        answer = self._answer(fetched.answer)
        match answer.state:
            case KeptState.THERE:
                return self._begin(answer)
            case KeptState.FAILED:
                raise self._error(ProducerFailedError, f"has no rows: its producer failed: {answer.cause}")
            case KeptState.RELEASED:
                raise self._error(PartitionReleasedError, "was released")
            case KeptState.ABSENT if now - (self._began or 0.0) > self._deadline:
                limit = f"{self._deadline:.0f} s (spark.penstock.external.requestTimeout)"
                raise self._error(PartitionNotProducedError, f"was not produced within {limit}")
        self._due = now + _AGAIN_SECONDS
        return []

    def _answer(self, plain: Plain) -> FoundRange:
        if plain.get("error") is None:
            return from_wire(FoundRange, plain)
        error = carried_error(plain)
        if error.partition is None:
            error.partition = self.wanted.source.partition.to_wire()
        raise error

    def _begin(self, answer: FoundRange) -> list[WantedPiece]:
        if answer.end is None:
            raise ProtocolError(f"{self._origin}: an answer without the sums of its range")
        self._end = answer.end
        try:
            extents = [FetchedExtent(*extent) for extent in read_kept(answer.extents)]
        except struct.error as error:
            raise ProtocolError(f"{self._origin}: its extents can't be read: {error}") from error
        self._in_order += _neighbours(extents)
        if self._lender is not None and extents:
            size = sum(extent.length for extent in extents)
            self._loan = LentFile(self._lender, self.wanted.source.partition, answer.number, size)
            return self._read_loan(self._loan)
        return self._fetch(answer.number)

    def _read_loan(self, loan: LentFile) -> list[WantedPiece]:
        """Read the next stretch when the last one was given; the pieces to fetch where that can't be."""
        if self._batches or not loan.may_read:
            return []
        stretch = self._in_order[0]
        size = stretch.end - stretch.begin
        data = loan.read(stretch.begin, size)
        if data is None:
            self._end_loan(loan)
            return self._fetch(loan.number)
        self._in_order.popleft()
        batches = self._rows.read(stretch.extents, stretch.begin, memoryview(data).cast("B"))
        self._batches.append(loan.counted(size, batches))
        if not self._in_order:
            self._end_loan(loan)
            self._close_if_all_is_there()
        return []

    def _end_loan(self, loan: LentFile) -> None:
        loan.close()
        self._loan = None

    def _fetch(self, number: int) -> list[WantedPiece]:
        for stretch in self._in_order:
            for offset in range(stretch.begin, stretch.end, CHUNK_BYTES):
                length = min(CHUNK_BYTES, stretch.end - offset)
                piece = WantedPiece(self.number, None, number, offset, length)
                self._fetching[piece] = stretch
                stretch.missing += 1
        self._close_if_all_is_there()
        return list(self._fetching)

    def _took_bytes(self, wanted: WantedPiece, data: pa.Buffer) -> None:
        stretch = self._fetching.pop(wanted, None)
        if stretch is None or data.size != wanted.length:
            raise ProtocolError(f"{self._origin}: {data.size} bytes came where {wanted.length} were wanted")
        stretch.pieces[wanted.offset] = data
        stretch.missing -= 1
        while self._in_order and not self._in_order[0].missing:
            first = self._in_order.popleft()
            self._batches.append(self._rows.read(first.extents, first.begin, first.bytes()))
        self._close_if_all_is_there()

    def _close_if_all_is_there(self) -> None:
        if not self._fetching and not self._in_order and self._end is not None:
            self._is_closed = True
            wanted = self.wanted
            last = wanted.subpartition + wanted.count - 1
            self._batches.append(self._rows.closing(self._end, f"subpartitions {wanted.subpartition} to {last}"))


def _neighbours(extents: list[FetchedExtent]) -> Iterator[_Neighbours]:
    """Neighbours together, up to `CHUNK_BYTES`."""
    found: _Neighbours | None = None
    for extent in extents:
        if found is None or extent.offset != found.end or extent.offset + extent.length - found.begin > CHUNK_BYTES:
            if found is not None:
                yield found
            found = _Neighbours([extent])
        else:
            found.extents.append(extent)
    if found is not None:
        yield found
