# SPDX-License-Identifier: Apache-2.0
"""What has come to a task: how much, and what the JobMaster has said to it."""

from __future__ import annotations

from collections import deque

from penstock.link.commands import TaskAction


class Arrivals:
    """`count` goes up with every frame but the answers to questions; `actions` are taken by whoever acts on them."""

    __slots__ = ("actions", "count")

    def __init__(self) -> None:
        self.count = 0
        self.actions: deque[TaskAction] = deque()
