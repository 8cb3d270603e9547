# SPDX-License-Identifier: Apache-2.0
"""The figures of a task that are its process's, told beside those of its rows: its memory."""

from __future__ import annotations

from penstock.machine.memory import PeakMemory
from penstock.shuffle.metrics import PEAK_RESIDENT, RESIDENT


class TaskWatch:
    """One attempt's, from its making on."""

    def __init__(self) -> None:
        self._memory = PeakMemory()

    def figures(self) -> dict[str, float]:
        """So far."""
        resident, peak = self._memory.look()
        return {RESIDENT: float(resident), PEAK_RESIDENT: float(peak)}
