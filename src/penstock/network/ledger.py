# SPDX-License-Identifier: Apache-2.0
"""Credit: who may send how much. One credit is one free buffer at the receiver.

Invariant, over both ends: credit + in flight + held = granted, nothing ever negative. Each end checks its share after
every step. The sender: `credit + spent == granted`. The receiver: every free buffer stands for exactly one credit,
`announced + unannounced == free`, where announced ones are at the sender or in flight towards us.

Rules. Backlog b asks for `b + exclusive` buffers; the missing ones are floating, from the gate's pool. Incoming data
takes floating buffers first, so they return to the pool first. A recycled exclusive buffer gives a surplus floating
one back instead of raising the credit. Only a change of `unannounced` from zero asks for an ADD_CREDIT, whose amount
is drained when the frame is written. Without exclusive buffers a blocked channel keeps none: both ends forget the
credit.

One event loop only; no locks. Non-goals: the sizes of buffers, and the memory behind a segment index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import ProtocolError
from penstock.network.frames import MAX_CREDIT


class FloatingSource(Protocol):
    """The gate's pool: lends floating buffers to its channels, and owns what released channels leave behind."""

    def request_floating(self) -> int | None:
        """A free floating segment, or None."""

    def return_floating(self, segment: int) -> None:
        """A floating segment comes back."""

    def return_exclusive(self, segment: int) -> None:
        """An exclusive segment of a released channel comes back."""

    def add_listener(self, listener: Callable[[int | None], bool]) -> bool:
        """Offer the listener a segment, once, later; False (and not added) where a request would succeed now.

        The listener returns whether it took the segment; None tells it that the pool has ended.
        """


class SenderCredit:
    """The credit that the receiver has granted to one reader."""

    __slots__ = ("credit", "granted", "initial", "spent")

    def __init__(self, initial: int) -> None:
        self.initial = initial
        self.credit = self.granted = initial
        self.spent = 0

    def read_ahead(self, on_credit: Callable[[int], None]) -> None:
        """A view that reads ahead of its reader has room for what was granted by now; later grants it hears of."""
        on_credit(self.credit)

    def grant(self, amount: int) -> None:
        """The receiver announced further buffers; raises ProtocolError beyond the limit."""
        if self.credit + amount > MAX_CREDIT:
            raise ProtocolError(f"a credit of {self.credit} + {amount}: at most {MAX_CREDIT} is allowed")
        self.credit += amount
        self.granted += amount

    def spend(self) -> None:
        """One data buffer is sent."""
        self.credit -= 1
        self.spent += 1
        self.check()

    def reset(self) -> None:
        """The receiver resumes a channel without exclusive buffers: it took its unused credit back."""
        self.granted -= self.credit
        self.credit = 0

    def check(self) -> None:
        """The sender's share of the invariant."""
        if self.credit < 0 or self.credit + self.spent != self.granted:
            raise AssertionError(f"credit {self.credit} + spent {self.spent} != granted {self.granted}")


class HeldBuffers:
    """The buffers of one remote input channel, by segment index, while their bytes are looked at."""

    __slots__ = ("_exclusive", "_held", "_released", "_source")

    def __init__(self, exclusive: Sequence[int], source: FloatingSource) -> None:
        self._exclusive = frozenset(exclusive)
        self._held: set[int] = set()
        self._source = source
        self._released = False

    @property
    def initial(self) -> int:
        """The buffers that it begins with: the credit that goes with the PARTITION_REQUEST."""
        return len(self._exclusive)

    @property
    def held(self) -> int:
        """Buffers filled and not yet recycled."""
        return len(self._held)

    def _returned(self, segment: int) -> bool:
        """The consumer is done with a buffer; True if it is the channel's own, and free."""
        if segment not in self._held:
            raise ValueError(f"segment {segment} is not held by this channel: recycled twice, or another channel's")
        self._held.remove(segment)
        if segment not in self._exclusive:
            self._source.return_floating(segment)
        elif self._released:
            self._source.return_exclusive(segment)
        else:
            return True
        return False


class ReceiverCredit(HeldBuffers):
    """The buffers of a channel whose sender is told of each."""

    __slots__ = (
        "_free_exclusive",
        "_free_floating",
        "_waiting",
        "announced",
        "on_unannounced",
        "required",
        "unannounced",
    )

    def __init__(self, exclusive: Sequence[int], source: FloatingSource) -> None:
        super().__init__(exclusive, source)
        self._free_exclusive = list(exclusive)
        self._free_floating: list[int] = []
        self._waiting = False
        self.announced = self.required = len(self._free_exclusive)
        self.unannounced = 0
        self.on_unannounced: Callable[[], None] = lambda: None
        """Called when `unannounced` turns from zero."""

    @property
    def free(self) -> int:
        """Buffers ready for incoming data."""
        return len(self._free_exclusive) + len(self._free_floating)

    def figures(self) -> dict[str, float]:
        """Credits at the sender or on their way, its backlog as it was told last, and the buffers here."""
        exclusive = len(self._exclusive)
        floating = len(self._free_floating) + sum(segment not in self._exclusive for segment in self._held)
        backlog = max(0, self.required - exclusive)
        return {"credit": self.announced, "backlog": backlog, "exclusive": exclusive, "floating": floating}

    def take(self) -> int:
        """A buffer for incoming data; raises ProtocolError where the sender had no credit."""
        if self.announced <= 0:
            raise ProtocolError("data arrived without credit: the sender sent more than was granted")
        segment = self._free_floating.pop() if self._free_floating else self._free_exclusive.pop()
        self._held.add(segment)
        self.announced -= 1
        self.required = max(self.required - 1, 0)
        self.check()
        return segment

    def take_empty(self) -> int | None:
        """The buffer that an empty one costs, because it was counted in the backlog that brought the credit."""
        return self.take()

    def await_buffer(self, go_on: Callable[[], None]) -> bool:
        """True: what comes has credit, so there is a buffer, or its sender is at fault."""
        return True

    def recycle(self, segment: int) -> None:
        """The consumer is done with a buffer it got from `take`."""
        if self._returned(segment):
            self._free_exclusive.append(segment)
            if self.free > self.required and self._free_floating:
                self._source.return_floating(self._free_floating.pop())
            else:
                self._grant()
        self.check()

    def require(self, backlog: int) -> None:
        """The sender told how many data buffers wait: get floating buffers for them as far as there are any."""
        if not self._released:
            self.required = backlog + len(self._exclusive)
            self._acquire()

    def withdraw(self) -> None:
        """The channel is blocked or resumes: without exclusive buffers, give all floating ones back."""
        if self._exclusive:
            return
        self.required = self.announced = self.unannounced = 0
        self._return_free_floating()
        self.check()

    def drain(self) -> int:
        """The amount for the ADD_CREDIT that is being written."""
        amount, self.unannounced = self.unannounced, 0
        self.announced += amount
        self.check()
        return amount

    def release(self) -> None:
        """The channel ends: free buffers go back now, held ones as they are recycled. Idempotent."""
        self._released = True
        self.required = self.announced = self.unannounced = 0
        exclusive, self._free_exclusive = self._free_exclusive, []
        for segment in exclusive:
            self._source.return_exclusive(segment)
        self._return_free_floating()

    def check(self) -> None:
        """The receiver's share of the invariant."""
        if self.announced < 0 or self.unannounced < 0 or self.announced + self.unannounced != self.free:
            raise AssertionError(f"announced {self.announced} + unannounced {self.unannounced} != free {self.free}")

    def _acquire(self) -> None:
        while self.free < self.required:
            segment = self._source.request_floating()
            if segment is None:
                if not self._waiting:
                    self._waiting = self._source.add_listener(self._on_floating)
                return
            self._free_floating.append(segment)
            self._grant()

    def _on_floating(self, segment: int | None) -> bool:
        self._waiting = False
        if segment is None or self._released or self.free >= self.required:
            return False
        self._free_floating.append(segment)
        self._grant()
        self._acquire()
        return True

    def _grant(self) -> None:
        self.unannounced += 1
        if self.unannounced == 1:
            self.on_unannounced()

    def _return_free_floating(self) -> None:
        floating, self._free_floating = self._free_floating, []
        for segment in floating:
            self._source.return_floating(segment)
