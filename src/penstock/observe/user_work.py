# SPDX-License-Identifier: Apache-2.0
"""The work of a process for each of its users: the bytes that it has moved, and the time that requests waited for it.

Of requests that wait beside each other each one's time counts, so a user may wait more than a second in each. Limits:
the last `USERS` are kept; one that was dropped counts from zero again, as after a restart. Used on one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from penstock.link.figures import UseFigures, UseKind

USERS = 1_000


class UserWork:
    """The ledger of one process."""

    def __init__(self) -> None:
        self._users: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def moved(self, user: str, size: int, seconds: float) -> None:
        """So many bytes were moved for a user, who has waited so long for them."""
        moved, waited = self._users.pop(user, (0.0, 0.0))
        self._users[user] = moved + size, waited + seconds
        if len(self._users) > USERS:
            self._users.popitem(last=False)

    def figures(self) -> Iterator[UseFigures]:
        """The figures by user."""
        for user, (moved, waited) in self._users.items():
            yield UseFigures(UseKind.USER, user, {"bytes": moved, "waiting_seconds": waited})
