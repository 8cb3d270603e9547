# SPDX-License-Identifier: Apache-2.0
"""How many task slots the application has: they go with a host, and come with a new one."""

from __future__ import annotations


class Capacity:
    """The slots as one job knows them. `planned` is how many there were when it was planned."""

    __slots__ = ("lost", "most", "planned", "total")

    def __init__(self, planned: int) -> None:
        self.planned = planned
        self.total = planned
        self.most = planned
        """The most there have been: so many may still be held."""
        self.lost = ""
        """What went when they became fewer, in words."""

    def change(self, total: int, lost: str) -> None:
        """There are so many now."""
        self.total, self.lost = total, lost
        self.most = max(self.most, total)
