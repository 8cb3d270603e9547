# SPDX-License-Identifier: Apache-2.0
"""One channel of a gate: its messages as they come, and the sums that are compared at their places."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import IncompleteDataError
from penstock.record.codec import BatchCodec
from penstock.record.completeness import CompletenessCounter
from penstock.record.framing import MessageAssembler
from penstock.shuffle.events import EndOfPartition, EpochEnd
from penstock.shuffle.ids import PartitionId
from penstock.shuffle.sums import EpochEnds


class GateChannel:
    """The messages that have come of one channel."""

    __slots__ = ("_codec", "_ends", "_is_midway", "assembler", "counter", "received", "stored", "verify", "where")

    def __init__(self, codec: BatchCodec, where: str, *, verify: bool) -> None:
        self.where = where
        self.verify = verify
        self._codec = codec
        self.begin_anew(is_midway=False)
        self.stored: PartitionId | None = None
        """The partition out of whose files some of it came: that is to be produced again if it is not complete."""

    def begin_anew(self, *, is_midway: bool) -> None:
        """Another attempt of the producer follows, or this reader has come in the middle: half a message is dropped.

        If it `is_midway` the sums of the next end are taken over, as this reader has not counted what was before.
        """
        self.received = 0
        """Messages that have come."""
        self.counter = CompletenessCounter()
        self.assembler = MessageAssembler(self._codec, self.counter, verify=self.verify)
        self._ends = EpochEnds(self.where)
        self._is_midway = is_midway

    def take(self, view: memoryview, *, is_kept: bool = False) -> list[pa.RecordBatch]:
        """The batches that these bytes complete; raises IncompleteDataError for an epoch that ends with them."""
        batches = self.assembler.feed(view, is_kept=is_kept)
        self.received += len(batches)
        if self._ends:
            for end in self._ends.reached(self.received):
                self._compare(end)
        return batches

    def end_epoch(self, event: EpochEnd) -> None:
        """Compare the epoch's sums when its last message has come; raises IncompleteDataError."""
        if self._is_midway:
            self._take_over(event, event.messages)
        for end in self._ends.came(event, self.received):
            self._compare(end)

    def end(self, event: EndOfPartition) -> None:
        """Compare the sums of all; raises IncompleteDataError."""
        if self._is_midway:
            self._take_over(event, self.received)
        self._ends.finish(self.received)
        try:
            self._compare(event)
        except IncompleteDataError as error:
            error.partition = None if self.stored is None else self.stored.to_wire()
            raise

    def _take_over(self, event: EpochEnd | EndOfPartition, messages: int) -> None:
        """Go on from the writer's sums: those of rows that came before this reader are in them."""
        self._is_midway, self.received = False, messages
        self.counter.rows, self.counter.nbytes, self.counter.checksum = event.rows, event.bytes, event.checksum

    def _compare(self, event: EpochEnd | EndOfPartition) -> None:
        self.assembler.finish()
        if self.verify:
            self.counter.verify(EndOfPartition(event.rows, event.bytes, event.checksum), self.where)
