# SPDX-License-Identifier: Apache-2.0
"""Which idle worker gets which subtask: the subtasks of a stage are spread over the environments. Pure.

Spread are those that are given out together; a worker that comes alone gets what is next. A subtask that failed for
something that its environment lacked goes to another one, where there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from penstock.job.core.execution.subtask import Subtask
from penstock.job.core.slots.workers import Worker


def placed(subtasks: Iterable[Subtask], idle: Sequence[Worker]) -> Iterator[tuple[Subtask, Worker]]:
    """Each subtask with its worker, in order, as long as there are workers."""
    if len({worker.environment for worker in idle}) < 2:
        yield from zip(subtasks, idle, strict=False)
        return
    waiting: dict[str, list[Worker]] = {}
    for worker in reversed(idle):
        waiting.setdefault(worker.environment, []).append(worker)
    given: Counter[tuple[int, str]] = Counter()
    for subtask in subtasks:
        if not waiting:
            return
        vertex = subtask.vertex.id
        # Of equals the one with the most idle workers, so that what comes later finds some on each.
        chosen = min(waiting, key=lambda name: (name == subtask.avoids, given[vertex, name], -len(waiting[name])))
        given[vertex, chosen] += 1
        yield subtask, waiting[chosen].pop()
        if not waiting[chosen]:
            del waiting[chosen]
