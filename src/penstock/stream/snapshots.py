# SPDX-License-Identifier: Apache-2.0
"""A task's snapshot between its taking and its storing: it is stored when all its rows in flight are known.

Of an aligned one there are none, so it is stored at once. One whose barrier overtook rows is held: the inputs tell
what stood in front of the barriers' places, the outputs what it overtook.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.checkpoint.barriers import Alignment, CheckpointBarrier
from penstock.shuffle.streaming import Mailbox
from penstock.stream.in_flight import SavedChannel
from penstock.stream.inputs import StreamInputs
from penstock.stream.outputs import StreamOutputs
from penstock.stream.persisting import Persisting
from penstock.stream.storing import SnapshotStore, TakenSnapshot


class Snapshots:
    """Those of one task; `store` is None where there are no checkpoints."""

    def __init__(
        self,
        mailbox: Mailbox,
        inputs: StreamInputs,
        outputs: StreamOutputs,
        store: SnapshotStore | None,
        persisting: Persisting,
    ) -> None:
        self._mailbox = mailbox
        self._inputs = inputs
        self._outputs = outputs
        self._store = store
        self._persisting = persisting
        self._held: TakenSnapshot | None = None
        self._incoming: list[SavedChannel] | None = None
        """Its rows in flight in the inputs, when they are known."""

    @property
    def held(self) -> int | None:
        """The checkpoint of a snapshot some of whose rows in flight are not known yet."""
        return None if self._held is None else self._held.checkpoint

    def take(self, taken: TakenSnapshot, barrier: CheckpointBarrier) -> None:
        """A snapshot was taken at this barrier, which was passed on if it overtakes rows; none may be held."""
        taken = replace(taken, log=self._persisting.cut(barrier.checkpoint, self._inputs.positions))
        self._held = taken
        self._incoming = None if barrier.alignment is Alignment.UNALIGNED else []
        if not barrier.overtakes_outputs:
            self._hand_over(taken, [])
            return
        self._held = replace(taken, shares_file=True)
        if barrier.alignment is Alignment.UNALIGNED:
            self._inputs.capture(barrier.checkpoint)
        self.gather()

    def gather(self) -> bool:
        """Fetch rows in flight of the one that is held, and store it when all are known; whether anything came."""
        if self._held is None:
            return False
        moved = self._inputs.gather()
        if self._incoming is None and (captured := self._inputs.captured()) is not None:
            self._incoming = list(self._persisting.incoming(captured))
        outgoing = self._outputs.saved()
        if outgoing is None or self._incoming is None:
            return moved
        self._hand_over(self._held, [*self._incoming, *outgoing])
        return True

    def give_up(self, checkpoint: int) -> None:
        """It will not be completed: drop its rows in flight, and what is to be stored."""
        if self._store is not None:
            self._store.give_up(checkpoint)
        if self._held is not None and self._held.checkpoint <= checkpoint:
            self._held = self._incoming = None
            self._inputs.drop_capture()
            self._outputs.forget()

    def _hand_over(self, held: TakenSnapshot, channels: list[SavedChannel]) -> None:
        self._held = self._incoming = None
        self._outputs.forget()
        if self._store is None:
            self._mailbox.decline(held.checkpoint, "this query has no checkpointLocation")
            return
        if channels:
            held.figures["in_flight_bytes"] = float(sum(channel.size for channel in channels))
            held.figures["referred_bytes"] = float(sum(channel.referred for channel in channels))
        self._store.store(replace(held, channels=channels))
