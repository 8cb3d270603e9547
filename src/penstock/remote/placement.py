# SPDX-License-Identifier: Apache-2.0
"""Which workers get the files of a dataset: by their free space and their load. Pure.

A worker's share is its free space beyond the reserve, less the more of its memory is in use. Each file goes to the
worker that is furthest below its share. There is no file for a worker that is full, left out, leaving or lost: those
are not offered here.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may get files: bytes that are free beyond its reserve, its load from 0 to 1, its files so far."""

    worker: str
    free: int
    load: float = 0.0
    files: int = 0

    @property
    def weight(self) -> float:
        """The worker's share, beside the others'."""
        return max(0, self.free) * (1.0 - 0.9 * min(1.0, max(0.0, self.load)))


def placed(files: int, candidates: Sequence[Candidate]) -> list[str]:
    """A worker for each of so many files; none at all where no worker has room."""
    queue = [(1 / each.weight, each.files, each.worker, each.weight) for each in candidates if each.weight > 0]
    if not queue:
        return []
    heapq.heapify(queue)
    counts = dict.fromkeys((worker for _, _, worker, _ in queue), 0)
    found = []
    for _ in range(files):
        _, before, worker, weight = queue[0]
        found.append(worker)
        counts[worker] += 1
        heapq.heapreplace(queue, ((counts[worker] + 1) / weight, before, worker, weight))
    return found
