# SPDX-License-Identifier: Apache-2.0
"""Buffers without credit: what both ends of a channel keep where the sender sends whatever it has.

Rules. The sender may always send; what its view reads ahead of need stays as much as the receiver began with, so that
a view of files is bounded too. The receiver takes a buffer when data has come: an exclusive one first, then one of
its gate's pool. If there is none it says so, and calls back once when there is. Invariant: a segment is free, kept
for the one that waits, or held, never two of them; everything goes back to where it is from.

These are the ledgers of `flow.TCP` and `flow.THROTTLE`. One event loop only; no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.network.ledger import FloatingSource, HeldBuffers


class OpenSender:
    """The right to send without end, with the members of `SenderCredit`."""

    __slots__ = ("_on_sent", "initial", "spent")

    credit = 1
    """There is always one more."""

    def __init__(self, initial: int) -> None:
        self.initial = max(1, initial)
        self.spent = 0
        self._on_sent: Callable[[int], None] = lambda _: None

    def read_ahead(self, on_credit: Callable[[int], None]) -> None:
        """A view that reads ahead of its reader has room for so many, and for one more with each that was sent."""
        self._on_sent = on_credit
        on_credit(self.initial)

    def grant(self, amount: int) -> None:
        """Nothing is granted that was not had before."""

    def spend(self) -> None:
        """One data buffer is sent."""
        self.spent += 1
        self._on_sent(1)

    def reset(self) -> None:
        """There is nothing to take back."""


class PooledBuffers(HeldBuffers):
    """The buffers of one channel whose sender knows nothing of them, with the members of `ReceiverCredit`.

    `level` is that of its gate.
    """

    __slots__ = (
        "_backlog",
        "_free",
        "_go_on",
        "_is_listening",
        "_kept",
        "_level",
        "on_unannounced",
    )

    announced = unannounced = 0
    """The sender is told of no buffers."""

    def __init__(self, exclusive: Sequence[int], source: FloatingSource, level: WaterLevel) -> None:
        super().__init__(exclusive, source)
        self._free = list(exclusive)
        self._kept: int | None = None
        """A floating segment that came for a frame that waits."""
        self._level = level
        self._go_on: Callable[[], None] | None = None
        self._is_listening = False
        self._backlog = 0
        self.on_unannounced: Callable[[], None] = lambda: None
        """Never called."""

    @property
    def free(self) -> int:
        """Buffers that it has at hand."""
        return len(self._free) + (self._kept is not None)

    def figures(self) -> dict[str, float]:
        """No credit, the sender's backlog as it was told last, and the buffers here."""
        floating = (self._kept is not None) + sum(segment not in self._exclusive for segment in self._held)
        return {"credit": 0, "backlog": self._backlog, "exclusive": self.initial, "floating": floating}

    def await_buffer(self, go_on: Callable[[], None]) -> bool:
        """True if `take` would give a buffer; else `go_on` is called once, when it would or the channel ends."""
        if self._free or self._kept is not None:
            return True
        self._kept = self._source.request_floating()
        if self._kept is not None:
            return True
        self._go_on = go_on
        if not self._is_listening:
            self._is_listening = self._source.add_listener(self._on_floating)
        self._level.fill()
        return False

    def take(self) -> int:
        """A buffer for incoming data, after `await_buffer` has said that there is one."""
        if self._kept is not None:
            segment, self._kept = self._kept, None
        else:
            segment = self._free.pop()
        self._held.add(segment)
        self._level.move(1)
        return segment

    def take_empty(self) -> int | None:
        """An empty buffer takes no room."""
        return None

    def recycle(self, segment: int) -> None:
        """The consumer is done with a buffer it got from `take`."""
        if self._returned(segment):
            self._free.append(segment)
            self._call()
        self._level.move(-1)

    def require(self, backlog: int) -> None:
        """The sender told how many data buffers wait; it sends them whatever there is here."""
        self._backlog = backlog

    def withdraw(self) -> None:
        """The channel is blocked or resumes: nothing was promised."""

    def drain(self) -> int:
        """Nothing is announced."""
        return 0

    def release(self) -> None:
        """The channel ends: free buffers go back now, held ones as they are recycled. Idempotent."""
        self._released = True
        free, self._free = self._free, []
        for segment in free:
            self._source.return_exclusive(segment)
        if self._kept is not None:
            segment, self._kept = self._kept, None
            self._source.return_floating(segment)
        self._call()

    def _on_floating(self, segment: int | None) -> bool:
        self._is_listening = False
        if segment is None or self._released or self._go_on is None:
            self._call()
            return False
        self._kept = segment
        self._call()
        return True

    def _call(self) -> None:
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on()


class WaterLevel:
    """The buffers that a gate holds, and the flag that is up from its high-water mark on, down to its low one.

    `on_flag` is told when that changes. A gate that gets no buffer has reached its mark, too: memory is short.
    """

    def __init__(self, high: int, low: int, on_flag: Callable[[bool], None]) -> None:
        if not 0 <= low < high:
            raise ValueError(f"marks of {low} and {high} buffers: 0 <= low < high is needed")
        self.high = high
        self.low = low
        self.held = 0
        self._down_at = low
        self.is_raised = self._has_ended = False
        self._on_flag = on_flag

    def move(self, buffers: int) -> None:
        """So many buffers more are held, or fewer."""
        self.held += buffers
        if self.held >= self.high:
            self.fill()
        elif self.held <= self._down_at and self.is_raised:
            self._turn(is_raised=False)

    def fill(self) -> None:
        """There is no buffer for what has come, or the mark is reached."""
        if not self.is_raised and not self._has_ended:
            self._down_at = min(self.low, self.held // 2)
            self._turn(is_raised=True)

    def end(self) -> None:
        """The gate is not read any more: a flag goes down, and none goes up. Idempotent."""
        self._has_ended = True
        if self.is_raised:
            self._turn(is_raised=False)

    def _turn(self, *, is_raised: bool) -> None:
        self.is_raised = is_raised
        self._on_flag(is_raised)
