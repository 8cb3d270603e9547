# SPDX-License-Identifier: Apache-2.0
"""What a job can run on: the task slots of the application, and the hosts that it had better leave alone."""

from __future__ import annotations

from penstock.job.core.hosts import Hosts


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
        """What went when they became fewer, in words."""

    def change(self, total: int, lost: str) -> None:
        """There are so many now."""
        self.total, self.lost = total, lost
        self.most = max(self.most, total)
