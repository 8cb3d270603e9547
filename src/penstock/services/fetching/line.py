# SPDX-License-Identifier: Apache-2.0
"""The connection of a gate to one service: made when the gate wants something of it, and again when it breaks.

Rules: a service that gives nothing for `patience` seconds while something is wanted is lost. Only time in which the
task calls `move` counts: it may take as long as it likes with what it has. A frame that has come damaged is asked for
again on another connection, at once, or after a pause where this one has given nothing. A login that fails and bytes
that are no protocol are raised at once, as trying again would not help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.services.fetching.parts import FetchedPiece, FetchQueue
from penstock.services.fetching.wire import Wire

_PAUSE_SECONDS = 0.1
_LOOK_SECONDS = 1.0
"""The longest time between two looks that counts as waiting."""


@dataclass(frozen=True, slots=True)
class LinePatience:
    """The seconds that a service may give nothing, the setting that says so, and the service's name for people."""

    seconds: float
    setting: str
    service: str


class ServiceLine:
    """One service of one gate; `connect` begins a connection."""

    def __init__(self, fetches: FetchQueue, connect: Callable[[], Wire], patience: LinePatience) -> None:
        self.fetches = fetches
        self.wire: Wire | None = None
        self._open = connect
        self._patience = patience
        self._again = 0.0
        self._looked: float | None = None
        self._stalled = 0.0
        self._cause = "it does not answer"
        self._has_given = False
        """True if anything has come over this connection."""

    @property
    def due(self) -> float | None:
        """The time of the next try, if that is what there is to wait for."""
        return self._again if self.wire is None and self.fetches else None

    def move(self, now: float) -> list[FetchedPiece]:
        """Do what can be done without waiting; what has come. TimeoutError, with the cause, where it is lost."""
        self._count(now)
        if self.wire is None:
            if not self.fetches or now < self._again:
                return []
            self._connect(now)
        found: list[FetchedPiece] = []
        wire = self.wire
        if wire is None:
            return found
        try:
            for message in wire.move():
                self._stalled, self._has_given = 0.0, True
                found += self.fetches.took(message)
            if found:
                wire.flush()
        except ConnectionError as error:
            found += self._broke(error, now)
        return found

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self.wire is not None:
            self.wire.close()
            self.wire = None

    def _count(self, now: float) -> None:
        """Count the time that has been waited for nothing."""
        since, self._looked = self._looked, now
        if not self.fetches:
            self._stalled = 0.0
        elif since is not None:
            self._stalled += min(now - since, _LOOK_SECONDS)
        patience = self._patience
        if self._stalled > patience.seconds:
            self.close()
            raise TimeoutError(
                f"{patience.service} gave nothing for {patience.seconds:.0f} s ({patience.setting}): {self._cause}"
            )

    def _connect(self, now: float) -> None:
        try:
            self.wire = self._open()
        except ConnectionError as error:
            self._cause, self._again = str(error), now + _PAUSE_SECONDS
            return
        self._has_given = False
        self.fetches.begin(self.wire.session)

    def _broke(self, error: ConnectionError, now: float) -> list[FetchedPiece]:
        was_made = self.wire is not None and not self.wire.is_connecting
        self.close()
        self._cause, self._again = str(error), now + _PAUSE_SECONDS * (not self._has_given)
        return list(self.fetches.end(blames=was_made))
