# SPDX-License-Identifier: Apache-2.0
"""The figures of a task that are its process's, told beside those of its rows: its memory, and its profile.

The profile is one of samples: a thread looks where the others are. Those that are in a user's function are the task's
own, and in a query the one in which a function over an iterator runs; one works at a time. Python's own
`sys._current_frames` needs no rights, no package and nothing of the function, and costs nothing while it is off
(decision 0073). A look waits where the function holds Python's lock in a long call, so each counts with the time
since the one before.
"""

from __future__ import annotations

import sys
import threading
import time

from penstock.machine.memory import PeakMemory
from penstock.shuffle.metrics import PEAK_RESIDENT, RESIDENT
from penstock.task.stacks import Stacks, users_stack

_SAMPLE_SECONDS = 0.01


class TaskWatch:
    """One attempt's, from its making on. `close` ends the samples, and can come twice."""

    def __init__(self, *, is_profiled: bool) -> None:
        self._memory = PeakMemory()
        self._stacks = Stacks()
        self._ends = threading.Event()
        self._sampler: threading.Thread | None = None
        if is_profiled:
            self._sampler = threading.Thread(target=self._sample, name="penstock-profile", daemon=True)
            self._sampler.start()

    def figures(self) -> dict[str, float]:
        """The figures so far."""
        resident, peak = self._memory.look()
        return {RESIDENT: float(resident), PEAK_RESIDENT: float(peak), **self._stacks.figures()}

    def close(self) -> None:
        """Look no more."""
        self._ends.set()
        if self._sampler is not None:
            self._sampler.join()

    def _sample(self) -> None:
        last = time.monotonic()
        while not self._ends.wait(_SAMPLE_SECONDS):
            stacks = [users_stack(frame) for frame in sys._current_frames().values()]  # noqa: SLF001 - documented
            now = time.monotonic()
            for stack in stacks:
                self._stacks.add(stack, now - last)
            last = now
