# SPDX-License-Identifier: Apache-2.0
"""The resources of a job: the task slots of the application, and the hosts that it had better leave alone. Pure.

A host that loses its environments again and again is left out for a while: a job gives its workers there nothing as
long as it can go on with workers of other hosts. They keep their slots meanwhile: given back, Spark would fill them
with the next workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.errors import SlotsError
from penstock.shuffle.ids import host_of

LOSSES = 3
"""So many losses, in WITHIN_SECONDS, are no accident any more."""
WITHIN_SECONDS = 600.0
LEFT_OUT_SECONDS = 300.0


class SlotsReturnedError(SlotsError):
    """A job that waited for lost slots fits again. It is over, and its submitter plans it anew for these."""


class Hosts:
    """The hosts of one application."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._losses: dict[str, deque[float]] = {}
        self._out_until: dict[str, float] = {}

    def lost(self, environment: str) -> str | None:
        """An environment failed; its host, where that is left out from now on."""
        host, now = host_of(environment), self._now()
        losses = self._losses.setdefault(host, deque(maxlen=LOSSES))
        losses.append(now)
        if len(losses) < LOSSES or now - losses[0] > WITHIN_SECONDS:
            return None
        losses.clear()
        self._out_until[host] = now + LEFT_OUT_SECONDS
        return host

    @property
    def are_fine(self) -> bool:
        """Tell whether none is left out."""
        self._out_until = {host: until for host, until in self._out_until.items() if until > self._now()}
        return not self._out_until

    def is_out(self, environment: str) -> bool:
        """Tell whether this environment's host is left out."""
        return self._out_until.get(host_of(environment), 0.0) > self._now()


class Capacity:
    """The slots as one job knows them. `planned` is how many there were when it was planned."""

    __slots__ = ("hosts", "lost", "most", "planned", "total")

    def __init__(self, planned: int, hosts: Hosts) -> None:
        self.hosts = hosts
        self.planned = planned
        self.total = planned
        self.most = planned
        """The most there have been: so many may still be held."""
        self.lost = ""
        """The loss by which they became fewer, in words."""

    def change(self, total: int, lost: str) -> None:
        """There are so many now."""
        self.total, self.lost = total, lost
        self.most = max(self.most, total)
