# SPDX-License-Identifier: Apache-2.0
"""What is known of a task's process that died without a word: how, at which function, with how much memory.

The kernel tells the signal (`machine.process_end`), the process its function (`machine.work_sign`). Its memory is
looked at a few times a second while it lives. Whether the kernel has killed for memory is seen by its counts, which
say nothing of who: a process that was killed by SIGKILL while they grew is taken for that one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.environment.tasks.attached import AttachedTask
from penstock.machine.memory import MemoryKills, is_limited, machine_memory, memory_kills, resident_memory
from penstock.shuffle.metrics import READING, WRITING

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
_MUCH = 0.5
"""A process with such a share of the memory that there is may have been killed for it."""
_KILLS_SECONDS = 1.0
"""Between two looks at the kernel's counts, which are in several files."""
_WHILE = {READING: " while it read its input", WRITING: " while it wrote its rows"}
_MORE = (
    "Give it more (on a cluster spark.executor.memoryOverhead), run fewer tasks at a time, or let the function take"
    " fewer rows in one call; with spark.executor.pyspark.memory it gets a MemoryError and its traceback instead"
)


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one process. `code` is its exit code, or minus the signal that killed it; None where it is unknown.

    `work` is what it worked on, `memory` the bytes that it had `age` seconds before, `limit` those that there are:
    a container's where `is_limited`. `kills` are those for memory since that look.
    """

    pid: int
    code: int | None = None
    work: str = ""
    memory: int = 0
    age: float = 0.0
    limit: int = 0
    is_limited: bool = False
    kills: MemoryKills = field(default_factory=MemoryKills)


def death_words(death: Death) -> str:
    """The sentence for who asks why a task was lost: what happened, the figures, what to do."""
    process = f"its process (pid {death.pid})"
    work = _WHILE.get(death.work, f" in {death.work}" if death.work else "")
    if death.code is None:
        return f"{process} was killed or crashed{work}{_memory(death)}. {_who(death)}"
    if death.code >= 0:
        ended = f"{process} ended itself{work} with exit code {death.code}"
        return f"{ended}: a function, or a library that it calls, calls os._exit or exit(). Raise an error instead"
    name = _signal_name(-death.code)
    if -death.code == signal.SIGKILL and (death.kills.in_groups or death.kills.on_machine):
        reached = "its container" if death.kills.in_groups or death.is_limited else "this machine"
        return f"the kernel killed {process} for memory{work}: {reached} has no more{_memory(death)}. {_MORE}"
    if -death.code in _CRASHES:
        return (
            f"{process} crashed{work} ({name}): a fault of native code, such as a library that the function calls."
            " spark.python.worker.faulthandler.enabled=true shows the lines of Python that it was at"
        )
    return f"{process} was killed{work} ({name}){_memory(death)}. {_who(death)}"


def _memory(death: Death) -> str:
    if not death.memory:
        return ""
    has = "its container" if death.is_limited else "this machine"
    return f"; {death.age:.1f} s before it had {_size(death.memory)} of the {_size(death.limit)} that {has} has"


def _who(death: Death) -> str:
    if death.memory > _MUCH * death.limit > 0:
        return f"Memory is the likely reason. {_MORE}"
    return (
        "Somebody has ended it: a monitor of containers, Spark, or a user; the host's log and Spark's say who. If it"
        " was for memory, give it more (on a cluster spark.executor.memoryOverhead)"
    )


def _size(count: int) -> str:
    return f"{count / (1 << 30):,.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):,.0f} MiB"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Deaths:
    """Looks after the processes of one environment's tasks, to say how they died."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kills, self._counted = memory_kills(), clock()
        self._before = self._kills
        """Those of the look before: the last one may have come between a kill and its word."""
        self._seen: dict[int, tuple[int, float]] = {}
        """The memory of each process, and when it was looked at."""

    def see(self, pid: int) -> None:
        """A task of this process has come."""
        if not self._seen:  # kills are not counted while there is no task: these were before it
            self._before = self._kills = memory_kills()
            self._counted = self._clock()
        self._seen[pid] = resident_memory(pid)[0], self._clock()

    def look(self, tasks: Iterable[AttachedTask]) -> None:
        """Look at what they have now."""
        pids = {task.pid for task in tasks}
        if pids and self._clock() - self._counted >= _KILLS_SECONDS:
            self._before, self._kills, self._counted = self._kills, memory_kills(), self._clock()
        self._seen = {pid: self._seen[pid] for pid in pids & self._seen.keys()}
        for pid in pids:
            if size := resident_memory(pid)[0]:  # else it has just died, and what it had before counts
                self._seen[pid] = size, self._clock()

    def words(self, task: AttachedTask, code: int | None) -> str:
        """Say how the process of a task died."""
        memory, at = self._seen.get(task.pid, (0, self._clock()))
        now = memory_kills()
        kills = MemoryKills(now.in_groups - self._before.in_groups, now.on_machine - self._before.on_machine)
        age = self._clock() - at
        return death_words(Death(task.pid, code, task.work(), memory, age, machine_memory(), is_limited(), kills))
